"""Ctrl-C and SIGTERM: clean up, say which work is kept, and exit with code 130 or 143."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_kept = ""
# The stop that was requested, even if a library swallowed the exception.
_asked: Stopped | None = None


class Stopped(BaseException):
    """A signal stopped the command. Not a KeyboardInterrupt, whose message typer hides."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped{_kept and '; '}{_kept}")
        self.exit_code = 128 + number


def keeps(what: str) -> None:
    """Set the part of the stop message that says how finished work is kept."""
    global _kept  # noqa: PLW0603  (a process runs one command)
    _kept = what


@contextmanager
def listening() -> Iterator[None]:
    """Within the block, the first signal raises Stopped; a second signal ends the process."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _leave)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        if _asked is not None:  # a library may have swallowed or replaced the exception
            raise _asked


@contextmanager
def expected() -> Iterator[None]:
    """Within the block, a signal ends the command normally."""
    global _asked  # noqa: PLW0603  (a process runs one command)
    try:
        yield
    except Stopped:
        _asked = None


def _stop(number: int, frame: FrameType | None) -> None:
    global _asked  # noqa: PLW0603  (a process runs one command)
    _asked = Stopped(number)
    signal.signal(number, signal.SIG_DFL)
    # Hide errors of half-built objects that fail to close.
    sys.unraisablehook = lambda _: None
    # Unwinding may wait for the scorer. The signal may interrupt a buffered write, so use os.write.
    os.write(2, b"stopping...\n")
    _leave(number, frame)


def _leave(_number: int, frame: FrameType | None) -> None:
    """Raise the requested stop; within an import or a finalizer, retry shortly after.

    An exception while a C extension (torch's, NumPy's) initialises aborts the process, and Python
    ignores exceptions in `__del__`.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "__del__":
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return
        frame = frame.f_back
    if _asked is not None:
        raise _asked
