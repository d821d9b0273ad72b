"""Prompts from a file: jsonl, csv or txt, plain or gzipped, with errors that name the line."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tide.errors import InputError


@dataclass(frozen=True)
class Row:
    """One text of an input file. `id` is the file's own, else the number of the row, from 0.

    group: what a benchmark sorts its texts by (a label, a domain), if it does.
    """

    id: int | str
    text: str
    group: str | None = None


def read_rows(
    path: Path,
    *,
    field: str = "prompt",
    group: str | None = None,
    limit: int | None = None,
    skip_empty: bool = False,
) -> list[Row]:
    """The texts of `path`, in order, at most `limit`; `group` names the field of their groups.

    jsonl: one object a line with `field` (a string, or an object with `text` as in
    RealToxicityPrompts) and optionally `id`. csv: a header with `field` and optionally `id`.
    txt: one text a line, blank lines skipped. A further `.gz` is read through gzip.

    Raises InputError, with the line's number, for a line that cannot be used, an id that occurs
    twice, an empty text unless `skip_empty`, or a file without texts.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind not in (".jsonl", ".csv", ".txt"):
        raise InputError(f"{path}: unknown kind of file; use .jsonl, .csv or .txt (or these .gz)")
    rows: list[Row] = []
    first_line: dict[int | str, int] = {}
    with _opened(path) as file:
        for line, row in _READERS[kind](file, field):
            if limit is not None and len(rows) == limit:
                break
            place = f"{path}, line {line}"
            row_id, text = row.get("id", len(rows)), _text(row.get(field))
            if text is None:
                raise InputError(f"{place}: no text field {field!r}")
            if skip_empty and not text.strip():
                continue
            if not text.strip():
                raise InputError(f"{place}: {field!r} is empty")
            if not isinstance(row_id, int | str):
                raise InputError(f"{place}: 'id' is neither a number nor a text")
            if row_id in first_line:
                raise InputError(f"{place}: id {row_id!r} again (line {first_line[row_id]})")
            first_line[row_id] = line
            rows.append(Row(row_id, text, None if group is None else row.get(group)))
    if not rows:
        raise InputError(f"{path}: holds no {field}s")
    return rows


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a .jsonl file (or .jsonl.gz), each with its place for error messages.

    Raises InputError, with the line's number, for a line that is no JSON object.
    """
    with _opened(path) as file:
        for line, row in _read_jsonl(file, ""):
            yield f"{path}, line {line}", row


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file, for reading; what goes wrong with it becomes an InputError."""
    try:
        with open_text(path) as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _text(value: Any) -> str | None:
    text = value.get("text") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def open_text(path: Path) -> IO[str]:
    """A UTF-8 file, read through gzip if its name ends in `.gz`."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _read_jsonl(file: IO[str], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{file.name}, line {number}: not JSON: {error.msg}") from None
        if not isinstance(row, dict):
            raise InputError(f"{file.name}, line {number}: not a JSON object")
        yield number, row


def _read_csv(file: IO[str], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(file)
    if field not in (reader.fieldnames or ()):
        raise InputError(f"{file.name}, line 1: the header has no column {field!r}")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{file.name}, line {reader.line_num}: {error}") from None


def _read_txt(file: IO[str], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, {field: line.rstrip("\r\n")}


_READERS = {".jsonl": _read_jsonl, ".csv": _read_csv, ".txt": _read_txt}
