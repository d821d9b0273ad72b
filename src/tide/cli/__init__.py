"""The command line: each file holds a command or a group of commands.

This one begins and ends the process. Ctrl-C and SIGTERM clean up, and exit with code 130 or 143.
"""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import FrameType
from typing import NoReturn


def program() -> None:
    """Entry point: run `main`, then end the process.

    A scorer that hangs, or whose caller has left, may still run in a daemon thread. On a normal
    shutdown Python would end this thread inside torch or onnxruntime, which aborts the process
    ("terminate called without an active exception", exit code 134). So a command that leaves such
    a thread exits through `os._exit`.
    """
    # By default, garbage collections while importing PyTorch take a sixth of `tide run`'s time.
    gc.set_threshold(50_000)
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    if any(thread.daemon for thread in threading.enumerate()):
        from tide.core.concurrency import wait_for_threads  # noqa: PLC0415  (slow import)

        atexit.unregister(wait_for_threads)
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            code = code or 120  # as Python does
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """Run a command; exit with 1 after an error (one line on stderr), 130 or 143 after a signal.

    Any other exception is a bug: exit with 70, or raise the exception if TIDE_DEBUG is set.
    """
    try:
        with listening():
            if sys.argv[1:2] == ["--version"]:  # answered before the commands are imported
                print(version("tide-detox"))
            else:
                _run()
            sys.stdout.flush()  # a full disk raises here, not in the interpreter's shutdown
    except Stopped as stopped:
        _end(str(stopped), stopped.exit_code)
    except Exception as error:
        from tide.core.errors import TideError, described  # noqa: PLC0415
        from tide.core.sanitize import sanitized  # noqa: PLC0415

        if isinstance(error, TideError):
            _end(f"error: {error}", 1)
        if isinstance(error, OSError):
            _end(f"error: {sanitized(described(error))}", 1)
        if os.environ.get("TIDE_DEBUG"):
            raise
        advice = "a bug in tide; please report it with the traceback that TIDE_DEBUG=1 shows"
        _end(f"error: {sanitized(described(error))} ({advice})", 70)


def _run() -> None:
    format_last_lines(logging.Formatter())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # some terminals cannot encode all characters
            stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("tide").addHandler(handler)
    # Progress bars of quick loads would only push the results off the screen.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from tide.core.errors import local_imports  # noqa: PLC0415

    with local_imports():
        from tide.cli.app import app  # noqa: PLC0415

        app()


def _end(message: str, code: int) -> NoReturn:
    """Print the error and exit, even if stdout can no longer be written."""
    print(_line(message, "ERROR"), file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (flushed again at exit)
    sys.exit(code)


_last_lines = logging.Formatter()
# The stop that was requested, even if a library swallowed the exception.
_stopped: Stopped | None = None


class Stopped(BaseException):
    """A signal stopped the command. Not a KeyboardInterrupt, whose message typer hides."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped; written records are kept, and the same command resumes")
        self.exit_code = 128 + number


def format_last_lines(formatter: logging.Formatter) -> None:
    """Set the format of the lines that say why the command ends."""
    global _last_lines  # noqa: PLW0603  (a process runs one command)
    _last_lines = formatter


def _line(text: str, level: str) -> str:
    return _last_lines.format(logging.makeLogRecord({"msg": text, "levelname": level}))


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
def stops_normally() -> Iterator[None]:
    """Within the block, a signal ends the command normally."""
    global _stopped  # noqa: PLW0603  (a process runs one command)
    try:
        yield
    except Stopped:
        _stopped = None


def check_stop() -> None:
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
    os.write(2, f"{_line('stopping...', 'INFO')}\n".encode())
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # An exception while a C extension initialises would abort the process.
            os.write(2, f"{_line(str(_stopped), 'ERROR')}\n".encode())
            os._exit(_stopped.exit_code)
        frame = frame.f_back
    raise _stopped
