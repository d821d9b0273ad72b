"""Objects of JSON files: the one reader of .jsonl and .json, plain or gzipped, and a writer."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tide.errors import InputError


def kind_of(path: Path) -> str:
    """The last suffix of `path` without `.gz`: `.jsonl` of `a.jsonl.gz`."""
    return next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "")


def open_text(path: Path) -> IO[str]:
    """A UTF-8 file (a byte order mark is skipped), read through gzip if its name ends in `.gz`."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
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


def read_objects(path: Path, *, drop_cut: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of `path`, each with where it stands, for error messages: "FILE, line 3".

    .jsonl: one object a line, blank lines skipped. .json: a list of objects. Both may be gzipped.
    drop_cut: a last line without its end is left out; a kill has cut it off.
    Raises InputError, saying where, for anything else.
    """
    kind = kind_of(path)
    if kind not in (".jsonl", ".json"):
        raise InputError(f"{path}: unknown kind of file; use .jsonl or .json (or these .gz)")
    with opened(path) as file:
        if kind == ".jsonl":
            for number, line in enumerate(file, start=1):
                if line.strip() and not (drop_cut and not line.endswith("\n")):
                    where = f"{path}, line {number}"
                    yield where, parse_object(line, where)
            return
        rows = _parse(file.read(), str(path))
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a list of objects")
    for number, row in enumerate(rows, start=1):
        yield f"{path}, entry {number}", _object(row, f"{path}, entry {number}")


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """The JSON object that `text` is. Raises InputError, saying where, if it is none."""
    return _object(_parse(text, where), where)


def read_object(path: Path) -> dict[str, Any]:
    """The one object of a .json file. Raises InputError if it holds anything else."""
    with opened(path) as file:
        return parse_object(file.read(), str(path))


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Everything inside of objects that is none itself, with the names that lead to it."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, inner in value.items():
        yield from leaves(inner, (*path, name))


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all. Raises InputError where that is impossible."""
    unfinished = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


def _parse(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not JSON: {error.msg}") from None
    except (RecursionError, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"{where}: not JSON that can be read: {error}") from None


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    return row
