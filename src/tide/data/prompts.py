"""Prompts from a file: jsonl, csv or txt, plain or gzipped, with errors that name the line."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tide.data.jsonl import kind_of, opened, read_objects
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
    if kind_of(path) not in _READERS:
        raise InputError(f"{path}: unknown kind of file; use .jsonl, .csv or .txt (or these .gz)")
    rows: list[Row] = []
    first: dict[int | str, str] = {}
    for where, row in _READERS[kind_of(path)](path, field):
        if limit is not None and len(rows) == limit:
            break
        text, row_id = _text(row, field, where), row.get("id", len(rows))
        if skip_empty and not text.strip():
            continue
        if not text.strip():
            raise InputError(f"{where}: {field!r} is empty")
        if not isinstance(row_id, int | str) or isinstance(row_id, bool):
            raise InputError(f"{where}: 'id' is neither a number nor a text")
        if row_id in first:
            line = first[row_id].rpartition(", ")[2]
            raise InputError(f"{where}: id {row_id!r} again ({line})")
        first[row_id] = where
        rows.append(Row(row_id, text, None if group is None else row.get(group)))
    if not rows:
        raise InputError(f"{path}: holds no {field}s")
    return rows


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    text = value.get("text") if isinstance(value, dict) else value
    if text is None:
        raise InputError(f"{where}: no text field {field!r}")
    if not isinstance(text, str):
        raise InputError(f"{where}: {field!r} must be a text, got {type(text).__name__}")
    return text


def _read_csv(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with opened(path) as file:
        reader = csv.DictReader(file)
        try:
            if field not in (reader.fieldnames or ()):
                raise InputError(f"{path}, line 1: the header has no column {field!r}")
            for row in reader:
                yield f"{path}, line {reader.line_num}", row
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _read_txt(path: Path, field: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}, line {number}", {field: line.rstrip("\r\n")}


_READERS: dict[str, Callable[[Path, str], Iterator[tuple[str, dict[str, Any]]]]] = {
    ".jsonl": lambda path, _: read_objects(path),
    ".csv": _read_csv,
    ".txt": _read_txt,
}
