"""The file of a run's records.

While a run is in progress, the file is a log: each line is a part of a record. The first part of a
record holds its first trials. Later parts hold further trials, or scores that judges and reference
models add to existing trials. Reading merges the parts. At the end, the file is rewritten, one line
per record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.core.validation import problem
from tide.data.files import (
    numbered,
    replaced,
    reported,
    without_mark,
    writing,
)
from tide.data.jsonl import parse_object, parse_or_cut, read_objects
from tide.data.records import Added, Record, RecordId

# Fields added later to existing trials, by name of a judge or reference model.
_ADDED = ("judge_scores", "step_judge_scores", "judge_attributes", "perplexity")


class RecordPart:
    """One line of the file, at `where`: a part of a record, with some of its trials.

    Raises InputError for a missing id, for trials without distinct numbers, and for invalid values.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where, self.values = where, values
        row_id, trials, seconds = (values.get(name) for name in ("id", "trials", "seconds"))
        if not isinstance(row_id, int | str) or isinstance(row_id, bool):
            raise InputError(f"{where}: not a record of a run; id must be a number or a text")
        rows: list[dict[str, Any]] = trials if isinstance(trials, list) else [{}]
        numbers = [row.get("number") if isinstance(row, dict) else None for row in rows]
        if not all(type(n) is int for n in numbers) or len(set(numbers)) < len(numbers):
            raise InputError(f"{where}: not a record of a run; trials need distinct numbers")
        if any(not isinstance(row.get(name, {}), dict) for row in rows for name in _ADDED):
            names = " or ".join(_ADDED)
            raise InputError(f"{where}: not a record of a run; {names} is not an object")
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 <= seconds <= 1e100):
            raise InputError(f"{where}: not a record of a run; seconds must be a number >= 0")
        self.id: RecordId = row_id
        self.trials: dict[int, dict[str, Any]] = {row["number"]: row for row in rows}


def read_records(path: Path) -> list[Record]:
    """Read all records of a file, in the order of their first parts.

    A truncated last line is skipped. Raises InputError, with the line's number, for a line that is
    not a part of a record, or that repeats an earlier part.
    """
    parts: dict[RecordId, list[RecordPart]] = {}
    for where, values in read_objects(path, drop_cut=True):
        part = RecordPart(where, values)
        parts.setdefault(part.id, []).append(part)
    return [merged(of_record) for of_record in parts.values()]


def merged(parts: Sequence[RecordPart]) -> Record:
    """Merge the parts of a record.

    Raises InputError for a part that repeats an earlier part, and for an invalid field.
    """
    begin, found, rows = parts[0].where, dict(parts[0].values), dict(parts[0].trials)
    for part in parts[1:]:
        there = f"exists already ({begin})"
        if part.values.keys() - {"id", "trials", "seconds"}:
            raise InputError(f"{part.where}: record {part.id!r} {there}")
        if (seconds := part.values.get("seconds")) is not None:
            found["seconds"] = (found.get("seconds") or 0.0) + seconds
        for number, row in part.trials.items():
            if number not in rows:
                rows[number] = row
                continue
            known = rows[number] = dict(rows[number])
            for name in row.keys() - {"number"}:
                if name not in _ADDED or row[name].keys() & known.get(name, {}).keys():
                    raise InputError(f"{part.where}: {name} of trial {number} {there}")
                known[name] = known.get(name, {}) | row[name]
    found["trials"] = [rows[number] for number in sorted(rows)]
    try:
        return Record.model_validate(found)
    except ValidationError as error:
        raise InputError(f"{begin}: not a record of a run; {problem(error, 'trials')}") from None


class RecordFile:
    """A file of records that a command reads, extends by parts, and rewrites when it ends.

    The file is locked against other writers. Opening it validates every record and removes a
    truncated last line. Only an index of the parts and their trials is kept in memory.
    Leaving the context without an error compacts the file.

    instead: begin a new file, which replaces the old file when its first record is written, or at
    the end if there is no record. The replacement happens inside the context `instead`.

    Raises InputError if another process writes to the file, if it cannot be written, or if it is
    not a file of records.
    """

    def __init__(self, path: Path, *, instead: AbstractContextManager[None] | None = None) -> None:
        self.path, self._instead = path, instead
        self._order: Sequence[RecordId] = ()
        with ExitStack() as stack:
            self._real = stack.enter_context(writing(path))
            with reported(path, "written"):
                self._at = self._real
                if instead is not None:
                    self._at = self._real.with_name(f"{self._real.name}.part")
                    self._at.unlink(missing_ok=True)  # left by a killed process
                    stack.callback(self._forget)
                # Unbuffered, so that after an error nothing more is written.
                self._out = stack.enter_context(open(self._at, "ab", buffering=0))
                self._file = stack.enter_context(open(self._at, "rb"))
            self._scan()
            self._closing = stack.pop_all()

    def _forget(self) -> None:
        if self._instead is not None:
            with suppress(OSError):
                self._at.unlink()

    @property
    def ids(self) -> list[RecordId]:
        return list(self._places)

    def expect(self, prompts: dict[RecordId, str | Chat], most: int | None = None) -> None:
        """Declare the prompts of the expected records; the compacted file has this order.

        A chat is compared by its messages, since a template may write today's date into its text.

        most: largest number of prompts of any run that wrote to this file, if known.
        Raises InputError if an existing record was made from another prompt, or has no prompt here.
        """
        foreign = [row_id for row_id in self.ids if row_id not in prompts]
        if most is not None and foreign and len(prompts) + len(foreign) > most:
            raise InputError(
                f"{self.path}: record {foreign[0]!r} belongs to no prompt of the input; write "
                "elsewhere, or start again with --overwrite"
            )
        for row_id, prompt in prompts.items():
            asked = _digest(prompt.dump() if isinstance(prompt, Chat) else prompt)
            if self._prompts.get(row_id, asked) != asked:
                raise InputError(
                    f"{self.path}: record {row_id!r} was made from another prompt than the input "
                    "has; write elsewhere, or start again with --overwrite"
                )
        self._order = list(prompts)

    def trials(self, row_id: RecordId) -> list[int]:
        """Return the numbers of the existing trials of a record."""
        return list(self._trials.get(row_id, ()))

    def missing(self, row_id: RecordId, field: str, name: str) -> list[int]:
        """Return the numbers of the existing trials that have no entry `name` in `field`."""
        return [n for n, added in self._trials[row_id].items() if (field, name) not in added]

    def read(self, row_id: RecordId) -> Record:
        return merged(self._parts(row_id))

    def _parts(self, row_id: RecordId) -> list[RecordPart]:
        parts = []
        for number, offset in self._places[row_id]:
            with reported(self.path, "read"):
                self._file.seek(offset)
                line = self._file.readline()
            parts.append(self._part(line, f"{self.path}, line {number}"))
        return parts

    def add(self, record: Record) -> None:
        """Append a record, or further trials of an existing record, without buffering.

        Raises InputError if the record cannot be written completely, or contradicts the existing
        parts; the file is then unchanged.
        """
        further = record.id in self._places
        left_out = {"prompt", "messages", "group"} if further else None
        values = record.model_dump(exclude=left_out, exclude_defaults=True)
        if further:
            merged([*self._parts(record.id), RecordPart(f"{self.path}: further trials", values)])
        self._append(values)

    def extend(self, row_id: RecordId, added: Added) -> None:
        """Append values added to existing trials of a record. Raises InputError like `add`."""
        rows = [{"number": number, **values} for number, values in added.items()]
        self._append({"id": row_id, "trials": rows})

    def _append(self, values: dict[str, Any]) -> None:
        offset = os.fstat(self._out.fileno()).st_size
        rest = memoryview(to_json(values) + b"\n")
        try:
            while rest:
                rest = rest[self._out.write(rest) :]
        except BaseException as error:
            with suppress(OSError):
                self._out.truncate(offset)
            if not isinstance(error, OSError):
                raise
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; earlier records are kept; the "
                "same command resumes"
            ) from error
        self._index(offset, RecordPart(f"{self.path}, line {self._lines + 1}", values))
        self._replace()

    def _replace(self) -> None:
        if self._instead is not None:
            with self._instead, reported(self.path, "written"):
                os.replace(self._at, self._real)
            self._at, self._instead = self._real, None

    def _compact(self) -> None:
        """Rewrite the file as one line per record, in the expected order."""
        self._replace()
        wanted = [row_id for row_id in self._order if row_id in self._places]
        wanted = list(dict.fromkeys([*wanted, *self._places]))
        if wanted == self.ids and all(len(places) == 1 for places in self._places.values()):
            return
        with replaced(self._real) as file:
            for row_id in wanted:
                file.write(self.read(row_id).to_json().encode() + b"\n")

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._closing:
            if kind is None:
                self._compact()

    def _scan(self) -> None:
        self._places: dict[RecordId, list[tuple[int, int]]] = {}  # numbers and offsets of lines
        # For each trial, its additions: the field, and the name of the judge or reference model.
        self._trials: dict[RecordId, dict[int, tuple[tuple[str, str], ...]]] = {}
        self._prompts: dict[RecordId, bytes] = {}
        self._lines = offset = 0
        with reported(self.path, "read"):
            for where, line in numbered(self._file, self.path):
                if not line.strip():
                    self._lines += 1
                    offset += len(line)
                    continue
                if (values := parse_or_cut(without_mark(line), where)) is None:
                    break
                part = RecordPart(where, values)
                if part.id not in self._places:
                    merged([part])  # raises if the part is not a record by itself
                self._index(offset, part)
                if not line.endswith(b"\n"):
                    self._out.write(b"\n")
                offset += len(line)
            if offset < os.fstat(self._out.fileno()).st_size:
                self._out.truncate(offset)
        for row_id, places in self._places.items():
            if len(places) > 1:
                self.read(row_id)  # raises if the parts do not make a record

    def _part(self, line: bytes, where: str) -> RecordPart:
        return RecordPart(where, parse_object(without_mark(line), where))

    def _index(self, offset: int, part: RecordPart) -> None:
        """Add a valid part to the index."""
        if part.id not in self._places:
            self._prompts[part.id] = _digest(part.values.get("messages") or part.values["prompt"])
        self._lines += 1
        self._places.setdefault(part.id, []).append((self._lines, offset))
        known = self._trials.setdefault(part.id, {})
        for number, row in part.trials.items():
            added = tuple((field, name) for field in _ADDED for name in row.get(field, ()))
            known[number] = (*known.get(number, ()), *added)


def _digest(asked: Any) -> bytes:
    """Return the digest of a prompt, or of a chat's messages as JSON."""
    text = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
