"""The file of a run's records.

It is a log while work is under way: each line is a part of the record of an id. The first holds its
first trials. Later parts hold further trials, a judge's scores, or the perplexity under a reference
model; `trials` says which trials the lists of a part are of. Reading merges the parts. When the
work is done, the file is written anew with one line a record.
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
from tide.core.validation import Location, problem
from tide.data.files import (
    new_part,
    no_link,
    numbered,
    replaced,
    reported,
    without_mark,
    writing,
)
from tide.data.jsonl import leaves, parse_object, read_objects
from tide.data.records import DERIVED, Record, RecordId

# The name of a list inside a record: ("completions",), ("judge_scores", NAME).
Column = tuple[str, ...]
# What is not a list with one entry a trial.
_OF_THE_PROMPT = ("id", "prompt", "messages", "group", "trials", "seconds", *DERIVED)
# Lists that are added to finished records, and how deep they lie; the others come with the trials.
_ADDED = {"judge_scores": 2, "step_judge_scores": 2, "judge_attributes": 3, "perplexity": 3}
# How deep lists lie that are not at the top.
_DEPTHS = {**_ADDED, "attributes": 2}
_FIRST: Column = ("completions",)
# Of those that come with the trials, the ones that some trials have and others do not.
_SOME_HAVE = ("base_partial", "changed_tokens", "decoded_prompts")


class RecordPart:
    """What one line, at `where`, says of a record; `trials` says which trials its lists are of.

    Raises InputError without an id, or for lists that do not fit the trials.
    """

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where, self.values = where, values
        row_id, trials = values.get("id"), values.get("trials", [])
        if not isinstance(row_id, int | str) or isinstance(row_id, bool):
            raise InputError(f"{where}: not a record of a run: no id that is a number or a text")
        if "trials" not in values and isinstance(texts := values.get("completions"), list):
            trials = list(range(len(texts)))  # as in published records
        numbers = trials if isinstance(trials, list) else [None]
        if not all(type(n) is int for n in numbers) or len(set(numbers)) < len(numbers):
            raise InputError(f"{where}: not a record of a run: trials are not distinct numbers")
        seconds = values.get("seconds", 0.0)
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            raise InputError(f"{where}: not a record of a run: seconds: is not a number")
        self.id: RecordId = row_id
        self.columns: dict[Column, dict[int, Any]] = {}
        lists = {name: value for name, value in values.items() if name not in _OF_THE_PROMPT}
        for column, entries in leaves(lists):
            name = ".".join(column)
            if len(column) != _DEPTHS.get(column[0], 1):
                raise InputError(f"{where}: not a record of a run: {name} is not at its place")
            if not isinstance(entries, list) or len(entries) != len(trials):
                raise InputError(f"{where}: {name} has not one entry a trial ({len(trials)})")
            self.columns[column] = dict(zip(trials, entries, strict=True))


def read_records(path: Path) -> list[Record]:
    """All records of a file, in the order in which their first parts stand in it.

    A last line that was cut off is left out. Raises InputError, with the line's number, for a line
    that is not a part of a record, or that repeats what is there already.
    """
    parts: dict[RecordId, list[RecordPart]] = {}
    for where, values in read_objects(path, drop_cut=True):
        part = RecordPart(where, values)
        parts.setdefault(part.id, []).append(part)
    return [merged(some) for some in parts.values()]


def merged(parts: Sequence[RecordPart]) -> Record:
    """The record that consists of these parts.

    Raises InputError for a part that repeats what is there, and for a field that is wrong.
    """
    begin, first = parts[0].where, parts[0].values
    own = ("id", "prompt", "messages", "group")
    found: dict[str, Any] = {name: first[name] for name in own if name in first}
    columns: dict[Column, dict[int, Any]] = {}
    for part in parts:
        if part is not parts[0] and "prompt" in part.values:
            raise InputError(f"{part.where}: record {part.id!r} is there already ({begin})")
        if "seconds" in part.values:
            found["seconds"] = found.get("seconds", 0.0) + part.values["seconds"]
        for column, entries in part.columns.items():
            known = columns.setdefault(column, {})
            for trial in entries:
                if known.get(trial) is not None:
                    name = f"{'.'.join(column)} of trial {trial}"
                    raise InputError(f"{part.where}: {name} is there already ({begin})")
            known |= entries
    found["trials"] = _rows(columns, begin)
    try:
        return Record.model_validate(found)
    except ValidationError as error:
        raise InputError(
            f"{begin}: not a record of a run: {problem(error, where=_in_the_file)}"
        ) from None


def _in_the_file(place: Location) -> Location:
    """Where a field of a trial stands in a file: in its list, the entry of the trial."""
    if place[0] != "trials" or len(place) < 3:
        return place
    _, trial, *inner = place
    depth = _DEPTHS.get(str(inner[0]), 1)
    return (*inner[:depth], trial, *inner[depth:])


def _rows(columns: dict[Column, dict[int, Any]], where: str) -> list[dict[str, Any]]:
    """A row for each trial that has a completion, ascending. Raises InputError as `merged`."""
    rows: dict[int, dict[str, Any]] = {}
    for trial in sorted(columns.get(_FIRST, {})):
        rows[trial] = {"trials": trial}
    for (*outer, last), known in columns.items():
        name = ".".join((*outer, last))
        if unknown := known.keys() - rows.keys():
            raise InputError(f"{where}: {name} of trial {min(unknown)}, which is not there")
        for trial, row in rows.items():
            if known.get(trial) is not None:
                target = row
                for key in outer:
                    target = target.setdefault(key, {})
                target[last] = known[trial]
            elif not outer and last not in _SOME_HAVE:
                raise InputError(f"{where}: not a record of a run: {name} of trial {trial}: none")
    return list(rows.values())


class RecordFile:
    """A file of records that a command reads, adds parts to, and rewrites at its end.

    Nobody else writes to it meanwhile. Every record in it is validated when it is opened. Holds
    where the parts of each record stand and which trials they cover. A last line that was cut off
    is dropped from the file. Leaving the context without an error compacts it.

    keep: hold the records, too, so that none is parsed again. instead: begin a new file. It takes
    the place of what is there, inside of this context, when its first record is written, or at the
    end of the work if there is none.

    Raises InputError if another process writes to the file, if it cannot be written, or if it is no
    file of records.
    """

    def __init__(
        self,
        path: Path,
        *,
        keep: bool = False,
        instead: AbstractContextManager[None] | None = None,
    ) -> None:
        self.path, self._keep, self._instead = path, keep, instead
        self._kept: dict[RecordId, Record] = {}
        self._order: Sequence[RecordId] = ()
        with ExitStack() as stack:
            self._real = stack.enter_context(writing(path))
            with reported(path, "written"):
                self._at = self._real if instead is None else new_part(self._real)
                if instead is not None:
                    stack.callback(self._forget)
                # Unbuffered: what is not written yet is not written later, after an error.
                out = open(self._at, "ab", buffering=0, opener=no_link)  # noqa: SIM115
                self._out = stack.enter_context(out)
                self._file = stack.enter_context(open(self._at, "rb", opener=no_link))
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
        """Say which records there will be: the compacted file has them first, in this order.

        A chat is compared by its messages: a template may write the day into its text.

        most: so many prompts were ever asked for, if that is known.
        Raises InputError if a record that is there was made from another prompt, or from none.
        """
        foreign = [row_id for row_id in self.ids if row_id not in prompts]
        if most is not None and foreign and len(prompts) + len(foreign) > most:
            raise InputError(
                f"{self.path}: record {foreign[0]!r} is of no prompt of the input; write "
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

    def trials(self, row_id: RecordId) -> tuple[int, ...]:
        """The numbers of the trials that are there."""
        return self._covered.get(row_id, {}).get(_FIRST, ())

    def missing(self, row_id: RecordId, column: Column) -> list[int]:
        """The numbers of the trials that are there, but not in `column`."""
        covered = self._covered[row_id].get(column, ())
        return [trial for trial in self.trials(row_id) if trial not in covered]

    def read(self, row_id: RecordId) -> Record:
        if row_id in self._kept:
            return self._kept[row_id]
        parts = []
        for number, offset in self._places[row_id]:
            with reported(self.path, "read"):
                self._file.seek(offset)
                line = self._file.readline()
            parts.append(self._part(line, f"{self.path}, line {number}"))
        return self._remember(merged(parts))

    def _remember(self, record: Record) -> Record:
        if self._keep:
            self._kept[record.id] = record
        return record

    def add(self, record: Record) -> None:
        """Append a record, or further trials of one that is there, and hand it to the system.

        Raises InputError if it cannot be written whole; then nothing of it is left in the file.
        """
        further = record.id in self._places
        self._append(record.to_columns(further=further))
        known = self._kept.get(record.id)
        self._remember(known.with_trials(record) if known else record)

    def extend(self, part: dict[str, Any], record: Record) -> None:
        """Append what was added to the trials of a record, which is now `record`; as `add`."""
        self._append(part)
        self._remember(record)

    def _append(self, values: dict[str, Any]) -> None:
        content, offset = to_json(values) + b"\n", os.fstat(self._out.fileno()).st_size
        self._index(offset, RecordPart(f"{self.path}, line {self._lines + 1}", values))
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[self._out.write(rest) :]
        except BaseException as error:
            with suppress(OSError):
                self._out.truncate(offset)
            if not isinstance(error, OSError):
                raise
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; the records before are kept, "
                "and the same command goes on"
            ) from error
        self._replace()

    def _replace(self) -> None:
        if self._instead is not None:
            with self._instead, reported(self.path, "written"):
                os.replace(self._at, self._real)
            self._at, self._instead = self._real, None

    def _compact(self) -> None:
        """Write one line a record, in the order expected, beside the file and then in its place."""
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
            self._kept.clear()

    def _scan(self) -> None:
        self._places: dict[RecordId, list[tuple[int, int]]] = {}  # numbers and offsets of lines
        self._covered: dict[RecordId, dict[Column, tuple[int, ...]]] = {}
        self._prompts: dict[RecordId, bytes] = {}
        self._lines = offset = 0
        with reported(self.path, "read"):
            for where, line in numbered(self._file, self.path):
                if not line.endswith(b"\n"):
                    break
                self._index(offset, part := self._part(line, where))
                offset += len(line)
                if len(self._places[part.id]) == 1:
                    self._remember(merged([part]))
            if offset < os.fstat(self._out.fileno()).st_size:
                self._out.truncate(offset)
        for row_id, places in self._places.items():
            if len(places) > 1:
                self._kept.pop(row_id, None)
                self.read(row_id)

    def _part(self, line: bytes, where: str) -> RecordPart:
        return RecordPart(where, parse_object(without_mark(line), where))

    def _index(self, offset: int, part: RecordPart) -> None:
        where, row_id, prompt = part.where, part.id, part.values.get("prompt")
        if "prompt" in part.values:
            if row_id in self._places or not isinstance(prompt, str):
                raise InputError(f"{where}: not a record of a run, or there already ({row_id!r})")
            self._prompts[row_id] = _digest(part.values.get("messages") or prompt)
        elif row_id not in self._places:
            raise InputError(f"{where}: not a record of a run: no prompt")
        covered = self._covered.setdefault(row_id, {})
        for column, entries in part.columns.items():
            if column == _FIRST or column[0] in _ADDED:
                there = [trial for trial, value in entries.items() if value is not None]
                before = covered.get(column, ())
                if set(before).intersection(there):
                    raise InputError(f"{where}: repeats {'.'.join(column)} of record {row_id!r}")
                covered[column] = (*before, *there)
        self._lines += 1
        self._places.setdefault(row_id, []).append((self._lines, offset))


def _digest(asked: Any) -> bytes:
    """Of a prompt, or of the messages of a chat as JSON has them."""
    text = asked if isinstance(asked, str) else json.dumps(asked, sort_keys=True)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
