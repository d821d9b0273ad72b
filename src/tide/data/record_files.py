"""The files of a run: a line per trial, and a line per score that is added later.

Both files only grow. Reading joins the lines by the id of the prompt and the number of the trial,
and drops a half-written last line, as left by a killed process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from tide.core.errors import InputError
from tide.core.validation import problem
from tide.data.files import reported, writing
from tide.data.jsonl import parse_or_cut, read_objects
from tide.data.records import JudgeScore, PerplexityScore, Record, RecordId

SomeScore = JudgeScore | PerplexityScore
_OF_PROMPT = ("id", "prompt", "messages", "group")


def read_records(path: Path, scores: Path | None = None) -> list[Record]:
    """Read the records of a file, with the scores of another file, in the order of their ids.

    Raises InputError, with the line's number, for a line that is not a trial or a score.
    """
    records: dict[RecordId, Record] = {}
    for where, values in read_objects(path, drop_cut=True):
        line = _parsed(where, values)
        records[line.id] = _joined(records.get(line.id), line)
    added: dict[RecordId, list[SomeScore]] = {}
    if scores is not None and scores.exists():
        for where, values in read_objects(scores, drop_cut=True):
            score = _parsed_score(where, values)
            added.setdefault(score.id, []).append(score)
    for row_id in added.keys() & records.keys():
        records[row_id] = with_scores(records[row_id], added[row_id])
    return sorted(records.values(), key=lambda record: (isinstance(record.id, str), record.id))


def _parsed(where: str, values: dict[str, Any]) -> Record:
    about = {name: values[name] for name in _OF_PROMPT if name in values}
    trial = {name: value for name, value in values.items() if name not in _OF_PROMPT}
    try:
        return Record.model_validate({**about, "trials": [trial]})
    except ValidationError as error:
        raise InputError(f"{where}: not a record of a run; {problem(error, 'trials')}") from None


def _joined(record: Record | None, further: Record) -> Record:
    """Add the trials of `further` to a record of the same prompt, in the order of their numbers."""
    if record is None:
        return further
    trials = sorted([*record.trials, *further.trials], key=lambda trial: trial.number)
    return record.model_copy(update={"trials": trials})


def _parsed_score(where: str, values: dict[str, Any]) -> SomeScore:
    kind = JudgeScore if "judge" in values else PerplexityScore
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: not a score of a run; {problem(error)}") from None


def with_scores(record: Record, scores: Iterable[SomeScore]) -> Record:
    """Copy a record, and add scores to its trials."""
    trials = {trial.number: trial for trial in record.trials}
    for score in scores:
        if score.number in trials:
            trials[score.number] = trials[score.number].with_score(score)
    return record.model_copy(update={"trials": list(trials.values())})


class RecordFile:
    """The records of a run, read whole, and open to be extended by trials and scores.

    The file is locked against other writers. begin: called before the first trial is written, or by
    `finish` if there is none; the old records and scores are deleted then. Without `begin`, the
    old records are extended.

    Raises InputError if another process writes to the file, if it cannot be written, or if it is
    not a file of records.
    """

    def __init__(
        self, path: Path, scores: Path, *, begin: Callable[[], None] | None = None
    ) -> None:
        self.path, self._scores, self._begin = path, scores, begin
        self.records: dict[RecordId, Record] = {}
        with ExitStack() as stack:
            stack.enter_context(writing(path))
            if begin is None:
                for file in (path, scores):
                    _end_last_line(file)
                if path.exists():
                    self.records = {record.id: record for record in read_records(path, scores)}
            self._closing = stack.pop_all()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    def trials(self, row_id: RecordId) -> list[int]:
        """Return the numbers of the existing trials of a record."""
        record = self.records.get(row_id)
        return [] if record is None else [trial.number for trial in record.trials]

    def add(self, record: Record) -> None:
        """Append a record, or further trials of an existing record.

        Raises InputError if the file cannot be written.
        """
        self.finish()
        self._append(self.path, record.lines())
        self.records[record.id] = _joined(self.records.get(record.id), record)

    def add_scores(self, row_id: RecordId, scores: Sequence[SomeScore]) -> None:
        """Append scores of the trials of a record. Raises InputError like `add`."""
        lines = [to_json(score.model_dump(exclude_defaults=True)) + b"\n" for score in scores]
        self._append(self._scores, lines)
        self.records[row_id] = with_scores(self.records[row_id], scores)

    def finish(self) -> None:
        """Delete the old run if this file begins a new run and nothing was written yet."""
        if self._begin is None:
            return
        with reported(self.path, "written"):
            self._scores.unlink(missing_ok=True)
            self.path.write_bytes(b"")
        self._begin()
        self._begin = None

    def _append(self, path: Path, lines: Sequence[bytes]) -> None:
        try:
            with path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written: {error.strerror}; earlier records are kept; the same "
                "command resumes"
            ) from error


def _end_last_line(path: Path) -> None:
    """Remove a half-written last line, or add the newline that a whole last line lacks."""
    if not path.exists():
        return
    with reported(path, "written"):
        content = path.read_bytes()
        start = content.rfind(b"\n") + 1
        if start == len(content):
            return
        if parse_or_cut(content[start:], str(path)) is None:
            os.truncate(path, start)
        else:
            with path.open("ab") as file:
                file.write(b"\n")
