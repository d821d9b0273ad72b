"""Files as bytes: read within bounds, written by one process at a time, and replaced as a whole."""

from __future__ import annotations

import codecs
import gzip
import os
import socket
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, cast

from tide.core.errors import InputError

# Bytes. A record of a thousand long trials has a few million; a longer line is not ours,
# and a gzipped file that unpacks to more is made to fill the memory.
_LINE, _WHOLE, _UNPACKED, _SMALL = 1 << 26, 1 << 28, 1 << 32, 1 << 20


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Turn an error of the system about `path` into an InputError. what: "read" or "written"."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError) and what == "read":
            raise InputError(f"{path}: no such file") from None
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be {what}: {reason}") from error


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, for reading, through gzip if its name ends in `.gz`.

    Errors while it is read become InputErrors.
    """
    with reported(path, "read"), path.open("rb") as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def numbered(file: IO[bytes], path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file, each with where it stands, for messages: "FILE, line 3".

    Raises InputError for a line of more than 64 MiB, or 4 GiB out of one gzipped file.
    """
    total = 0
    for number in count(1):
        line = file.readline(_LINE + 1)
        if not line:
            return
        where, total = f"{path}, line {number}", total + len(line)
        if len(line) > _LINE:
            raise InputError(f"{where}: has more than {_LINE >> 20} MiB; a line of data is shorter")
        if total > _UNPACKED and path.suffix == ".gz":
            raise InputError(
                f"{where}: unpacks to more than {_UNPACKED >> 30} GiB; unpack it first"
            )
        yield where, line


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Like `numbered`, without a byte order mark. Raises InputError if it cannot be read."""
    with opened(path) as file:
        for where, line in numbered(file, path):
            yield where, without_mark(line)


def read_whole(path: Path) -> bytes:
    """All of a file of at most 256 MiB, without a byte order mark."""
    return _read(path, _WHOLE, "use .jsonl for so much")


def read_small(path: Path) -> bytes:
    """All of a file of at most 1 MiB, such as settings, without a byte order mark."""
    return _read(path, _SMALL, "a file of settings is smaller")


def _read(path: Path, most: int, advice: str) -> bytes:
    with opened(path) as file:
        content = without_mark(file.read(most + 1))
    if len(content) > most:
        raise InputError(f"{path}: has more than {most >> 20} MiB; {advice}")
    return content


def without_mark(content: bytes) -> bytes:
    """`content` without a byte order mark."""
    return content.removeprefix(codecs.BOM_UTF8)


def as_text(line: bytes, where: str) -> str:
    """`line` as text. Raises InputError for one that is not UTF-8, or holds a NUL."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start + 1} of the line)") from None
    if "\0" in text:
        raise InputError(f"{where}: holds a NUL character: not UTF-8 text, UTF-16 perhaps")
    return text


def refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Raise InputError if `output` is one of the files that are read, under any name."""
    with reported(output, "written"):
        for path in inputs:
            if path.exists() and output.exists() and path.samefile(output):
                raise InputError(f"{output}: is also read as an input ({path}); write elsewhere")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Hold `path` for writing: the file that it leads to, whose folder is made if there is none.

    The lock is a file beside it, with `.lock` after its name, which says who holds it. A process
    that ends releases it, however it ends; the thread that holds it may take it again.
    Raises InputError where another process or thread holds it, and where nothing can be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  (slow import)

    with reported(path, "written"):
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_file():
            raise InputError(f"{path}: cannot be written: it is a folder or a device, no file")
        real.parent.mkdir(parents=True, exist_ok=True)
        beside = real.with_name(f"{real.name}.lock")
        with suppress(FileNotFoundError):
            found = os.lstat(beside)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise InputError(
                    f"{path}: cannot be written: {beside} is a link or a folder; remove it"
                )
        # Opening it names the cause of a failure; the lock would only say that it is held.
        with open(beside, "a+", encoding="utf-8", errors="replace", opener=no_link) as file:
            file.seek(0)
            holder = file.read(200)
        lock = FileLock(beside, is_singleton=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise InputError(
                f"{path}: {holder or 'another process'} is writing to it; wait for its end, or "
                "write elsewhere"
            ) from None
    try:
        if lock.lock_counter == 1:
            me = f"process {os.getpid()} on {socket.gethostname()}"
            # A full disk does not matter here: the holder's name is only for messages.
            with suppress(OSError), open(beside, "w", encoding="utf-8", opener=no_link) as file:
                file.write(me)
        yield real
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):
                beside.unlink()
        lock.release()


def no_link(path: str, flags: int) -> int:
    """Open a file beside an output; refuse a link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def new_part(real: Path) -> Path:
    """A new, empty file beside `real`, which is to take its place."""
    part = real.with_name(f"{real.name}.part")
    part.unlink(missing_ok=True)  # left by a killed process, or somebody else's link
    part.open("xb").close()
    return part


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` at the end, if all went well; else `path` stays.

    Raises InputError where that is impossible.
    """
    with writing(path) as real, reported(path, "written"):
        unfinished = new_part(real)
        try:
            with open(unfinished, "wb", opener=no_link) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, real)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise


def appended(path: Path) -> IO[str]:
    """A text file to which whole lines are appended. Raises InputError if it cannot be written."""
    with reported(path, "written"):
        return path.open("a", encoding="utf-8", buffering=1)


def user_cache() -> Path:
    """Folder for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tide"


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all. Raises InputError where that is impossible."""
    with replaced(path) as file:
        file.write(text.encode())
