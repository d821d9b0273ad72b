"""Read files with size limits; write files under a lock, and replace them as a whole."""

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

# Limits in bytes. The longest lines that TIDE writes are records of a thousand long trials, with a
# few million bytes. A gzipped file that unpacks to more than its limit is probably an attack.
_LINE, _WHOLE, _UNPACKED, _SMALL = 1 << 26, 1 << 28, 1 << 32, 1 << 20


@contextmanager
def reported(path: Path, what: str) -> Iterator[None]:
    """Turn a system error about `path` into an InputError. what: "read" or "written"."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError) and what == "read":
            raise InputError(f"{path}: no such file") from None
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be {what}: {reason}") from error


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, through gzip if its name ends in `.gz`.

    System errors inside the context become InputErrors.
    """
    if "\0" in str(path):
        raise InputError(f"{str(path)!r}: cannot be read: its name holds a NUL")
    with reported(path, "read"), path.open("rb") as file:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file


def numbered(file: IO[bytes], path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a file, each with its location for messages: "FILE, line 3".

    Raises InputError for a line of more than 64 MiB, or a gzipped file of more than 4 GiB unpacked.
    """
    total = 0
    for number in count(1):
        line = file.readline(_LINE + 1)
        if not line:
            return
        where, total = f"{path}, line {number}", total + len(line)
        if len(line) > _LINE:
            raise InputError(f"{where}: has more than {_LINE >> 20} MiB; shorten the line")
        if total > _UNPACKED and path.suffix == ".gz":
            raise InputError(
                f"{where}: unpacks to more than {_UNPACKED >> 30} GiB; unpack it first"
            )
        yield where, line


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Like `numbered`, without a byte order mark. Raises InputError for an unreadable file."""
    with opened(path) as file:
        for where, line in numbered(file, path):
            yield where, without_mark(line)


def read_whole(path: Path) -> bytes:
    """Read a file of at most 256 MiB, without a byte order mark."""
    return _read(path, _WHOLE, "use .jsonl for large files")


def read_small(path: Path) -> bytes:
    """Read a file of at most 1 MiB, such as settings, without a byte order mark."""
    return _read(path, _SMALL, "use a smaller file")


def _read(path: Path, most: int, advice: str) -> bytes:
    with opened(path) as file:
        content = without_mark(file.read(most + 1))
    if len(content) > most:
        raise InputError(f"{path}: has more than {most >> 20} MiB; {advice}")
    return content


def without_mark(content: bytes) -> bytes:
    """Remove a byte order mark from `content`."""
    return content.removeprefix(codecs.BOM_UTF8)


def as_text(line: bytes, where: str) -> str:
    """Decode a line. Raises InputError if it is not UTF-8, or contains a NUL."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start + 1} of the line)") from None
    if "\0" in text:
        raise InputError(f"{where}: holds a NUL character; if it is UTF-16, convert it to UTF-8")
    return text


def refuse_inputs(output: Path, inputs: Iterable[Path]) -> None:
    """Raise InputError if `output` is one of the input files, even by another path or a link."""
    with reported(output, "written"):
        for path in inputs:
            if path.exists() and output.exists() and path.samefile(output):
                raise InputError(f"{output}: is also read as an input ({path}); write elsewhere")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Lock a file for writing, and yield its resolved path; creates a missing folder.

    The lock is a file with the suffix `.lock` in the same folder; it names the process that holds
    the lock. The lock is released however the process ends, and the thread that holds the lock may
    take it again. Raises InputError if another process or thread holds the lock, or if the file
    cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415  (slow import)

    with reported(path, "written"):
        real = Path(os.path.realpath(path))
        if real.exists() and not real.is_file():
            raise InputError(f"{path}: cannot be written; it is a folder or a device, not a file")
        real.parent.mkdir(parents=True, exist_ok=True)
        beside = real.with_name(f"{real.name}.lock")
        with suppress(FileNotFoundError):
            found = os.lstat(beside)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise InputError(
                    f"{path}: cannot be locked; {beside} is a link or a folder; remove it"
                )
        # A failure to open reports its cause; FileLock would only report that the lock is held.
        with open(beside, "a+", encoding="utf-8", errors="replace", opener=no_link) as file:
            file.seek(0)
            holder = file.read(200)
        lock = FileLock(beside, is_singleton=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise InputError(
                f"{path}: {holder or 'another process'} is writing to it; wait until it ends, or "
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
    """Open an auxiliary file of an output; refuses links."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def new_part(real: Path) -> Path:
    """Create an empty file that will replace `real`."""
    part = real.with_name(f"{real.name}.part")
    part.unlink(missing_ok=True)  # left by a killed process, or a planted link
    part.open("xb").close()
    return part


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` if the context succeeds; else `path` stays unchanged.

    Raises InputError if the file cannot be written.
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
