"""Read the objects of .jsonl and .json files, plain or gzipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tide.core.errors import InputError
from tide.data.files import read_lines, read_whole


def kind_of(path: Path) -> str:
    """Return the last suffix of `path` apart from `.gz`: `.jsonl` for `a.jsonl.gz`."""
    return next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "")


def read_objects(path: Path, *, drop_cut: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of `path`, each with its location for messages: "FILE, line 3".

    .jsonl: one object per line, blank lines skipped. .json: a list of objects. Both may be gzipped.
    drop_cut: skip a truncated last line, as left by a killed process.
    Raises InputError, with the location, for anything else.
    """
    kind = kind_of(path)
    if kind not in (".jsonl", ".json"):
        raise InputError(f"{path}: unknown kind of file; use .jsonl or .json, plain or .gz")
    if kind == ".jsonl":
        for where, line in read_lines(path):
            if not line.strip():
                continue
            if (row := (parse_or_cut if drop_cut else parse_object)(line, where)) is None:
                return
            yield where, row
        return
    rows = _parse(read_whole(path), str(path))
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a list of objects")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, entry {number}", _object(row, f"{path}, entry {number}")


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object. Raises InputError, naming `where`, if `content` is not one."""
    return _object(_parse(content, where), where)


def parse_or_cut(line: bytes, where: str) -> dict[str, Any] | None:
    """Like `parse_object`; None for a line that was cut before its end, as by a killed process."""
    try:
        return parse_object(line, where)
    except InputError:
        if line.endswith(b"\n"):
            raise
        return None


def read_object(path: Path) -> dict[str, Any]:
    """Read the only object of a .json file. Raises InputError if the file holds anything else."""
    return parse_object(read_whole(path), str(path))


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all non-object values in nested objects, each with the keys that lead to the value."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, inner in value.items():
        yield from leaves(inner, (*path, name))


def _parse(content: bytes, where: str) -> Any:
    # Unlike Python's parser, from_json refuses lone surrogates, values nested deeper than 200, and
    # numbers with more digits than Python converts.
    try:
        return from_json(content)
    except ValueError as error:
        raise InputError(
            f"{where}: not JSON: {str(error).replace('line 1 column', 'column')}"
        ) from None


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    return row
