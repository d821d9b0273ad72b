"""Ctrl-C and SIGTERM: clean up, say which work is kept, and exit with code 130 or 143."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_notice = ""
# The stop that was requested, even if a library swallowed the exception.
_stopped: Stopped | None = None


class Stopped(BaseException):
    """A signal stopped the command. Not a KeyboardInterrupt, whose message typer hides."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped{_notice and '; '}{_notice}")
        self.exit_code = 128 + number


def keeps(notice: str) -> None:
    """Set the part of the stop message that says how finished work is kept."""
    global _notice  # noqa: PLW0603  (a process runs one command)
    _notice = notice


@contextmanager
def listening() -> Iterator[None]:
    """Within the block, the first signal raises Stopped; a second signal ends the process."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if _stopped is not None:
            raise _stopped


@contextmanager
def expected() -> Iterator[None]:
    """Within the block, a signal ends the command normally."""
    global _stopped  # noqa: PLW0603  (a process runs one command)
    try:
        yield
    except Stopped:
        _stopped = None


def check() -> None:
    """Raise Stopped if a stop was requested and a library, or garbage collection, swallowed it."""
    if _stopped is not None:
        raise _stopped


def _stop(number: int, frame: FrameType | None) -> None:
    global _stopped  # noqa: PLW0603  (a process runs one command)
    _stopped = Stopped(number)
    signal.signal(number, signal.SIG_DFL)
    # Hide errors of half-built objects that fail to close.
    sys.unraisablehook = lambda _: None
    # Unwinding may wait for the scorer. The signal may interrupt a buffered write, so use os.write.
    os.write(2, b"stopping...\n")
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # An exception while a C extension initialises would abort the process.
            os.write(2, f"{_stopped}\n".encode())
            os._exit(_stopped.exit_code)
        frame = frame.f_back
    raise _stopped
