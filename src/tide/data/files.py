"""Read files and their JSON objects; write files under a lock, and replace them as a whole."""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from tide.core.errors import InputError, problem

_Model = TypeVar("_Model", bound=BaseModel)


@contextmanager
def reported(path: Path, action: str) -> Iterator[None]:
    """Turn a system error about `path` into an InputError. action: "read" or "written"."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError) and action == "read":
            raise InputError(f"{path}: no such file") from None
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be {action}: {reason}") from error


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, through gzip if its name ends in `.gz`.

    System errors inside the context become InputErrors.
    """
    with reported(path, "read"), path.open("rb") as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def numbered(file: IO[bytes], path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file without byte order marks, each with its location for messages.

    A location is "FILE, line 3".
    """
    for number, line in enumerate(file, 1):
        yield f"{path}, line {number}", line.removeprefix(codecs.BOM_UTF8)


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of the file `path` like `numbered`. Raises InputError if it is unreadable."""
    with opened(path) as file:
        yield from numbered(file, path)


def read_whole(path: Path) -> bytes:
    """Read a file without a byte order mark. Raises InputError for an unreadable file."""
    with opened(path) as file:
        return file.read().removeprefix(codecs.BOM_UTF8)


def as_text(line: bytes, where: str) -> str:
    """Decode a line. Raises InputError if it is not UTF-8, or contains a NUL."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start + 1} of the line)") from None
    if "\0" in text:
        raise InputError(f"{where}: holds a NUL character; if it is UTF-16, convert it to UTF-8")
    return text


def refuse_input(output: Path | None, source: Path | None) -> None:
    """Raise InputError if the output is the input file, which would be destroyed."""
    if output and source and output.exists() and source.exists() and source.samefile(output):
        raise InputError(f"{output}: is also read as an input ({source}); write elsewhere")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Lock a file for writing, and yield its resolved path; creates a missing folder.

    The lock is a file with the suffix `.lock` in the same folder. It is released however the
    process ends, and the thread that holds the lock may take it again. Raises InputError if another
    process or thread holds the lock, or if the file cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  (slow import)

    with reported(path, "written"):
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_file():
            raise InputError(f"{path}: cannot be written; it is a folder or a device, not a file")
        real.parent.mkdir(parents=True, exist_ok=True)
        beside = real.with_name(f"{real.name}.lock")
        beside.touch()  # reports why it fails; FileLock would only report that the lock is held
        lock = FileLock(beside, is_singleton=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            problem = "another process is writing to it; wait, or write elsewhere"
            raise InputError(f"{path}: {problem}") from None
    try:
        yield real
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):
                beside.unlink()
        lock.release()


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` if the context succeeds; else `path` stays unchanged.

    Raises InputError if the file cannot be written.
    """
    with writing(path) as real, reported(path, "written"):
        unfinished = real.with_name(f"{real.name}.part")
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, real)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise


def appended(path: Path) -> IO[str]:
    """Open a text file to append whole lines. Raises InputError if the file cannot be written."""
    with reported(path, "written"):
        return path.open("a", encoding="utf-8", buffering=1)


def user_cache() -> Path:
    """Return the user's cache folder, for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tide"


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically. Raises InputError if the file cannot be written."""
    with replaced(path) as file:
        file.write(text.encode())


def kind_of(path: Path) -> str:
    """Return the last suffix of a file's name apart from `.gz`: `.jsonl` for `a.jsonl.gz`.

    Raises InputError for a folder, and for a path that cannot be looked up.
    """
    with reported(path, "read"):
        path.stat()
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    return next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "")


def read_objects(path: Path, *, drop_cut: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a .jsonl file, plain or gzipped, each with its location for messages.

    A location is "FILE, line 3". Blank lines are skipped.
    drop_cut: skip a truncated last line, as left by a killed process.
    Raises InputError, with the location, for anything else.
    """
    if kind_of(path) != ".jsonl":
        raise InputError(f"{path}: unknown kind of file; use .jsonl, plain or .gz")
    for where, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = parse_object(line, where)
        except InputError:
            if drop_cut and not line.endswith(b"\n"):
                return
            raise
        yield where, row


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object. Raises InputError, naming `where`, if `content` is not one."""
    # Unlike Python's parser, from_json refuses lone surrogates, values nested deeper than 200, and
    # numbers with more digits than Python converts.
    try:
        row = from_json(content)
    except ValueError as error:
        raise InputError(
            f"{where}: not JSON: {str(error).replace('line 1 column', 'column')}"
        ) from None
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a JSON object")
    return row


def parsed(model: type[_Model], values: dict[str, Any], where: str) -> _Model:
    """Create a `model`. Raises InputError with the first wrong field, but without its value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {problem(error)}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read the only object of a .json file. Raises InputError if the file holds anything else."""
    return parse_object(read_whole(path), str(path))
