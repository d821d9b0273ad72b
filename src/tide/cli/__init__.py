"""The command line: each file holds a command or a group of commands."""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import sys
import threading
from contextlib import suppress
from importlib.metadata import version
from typing import NoReturn


def program() -> None:
    """Entry point: run `main`, then end the process.

    A scorer that hangs may still run in a daemon thread. On a normal shutdown Python would end this
    thread inside torch, which aborts the process ("terminate called without an active exception",
    exit code 134). So a failed command exits through `os._exit`.
    """
    # By default, garbage collections while importing PyTorch take a sixth of `tide run`'s time.
    gc.set_threshold(50_000)
    try:
        main()
    except SystemExit as ended:
        failed = isinstance(ended.code, int) and ended.code != 0
        if failed and any(thread.daemon for thread in threading.enumerate()):
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(int(ended.code or 1))
        raise


def main() -> None:
    """Run a command; exit with 1 after an error (one line on stderr), 130 or 143 after a signal.

    Any other exception is a bug: exit with 70, or raise the exception if TIDE_DEBUG is set.
    """
    from tide.cli import stopping  # noqa: PLC0415

    if sys.stdout is None or sys.stderr is None:  # the next opened file would get its descriptor
        sys.exit("error: standard output or error is closed; redirect it to a file or /dev/null")
    try:
        with stopping.listening():
            if sys.argv[1:2] == ["--version"]:  # answered before the commands are imported
                print(version("tide-detox"))
            else:
                _run()
            sys.stdout.flush()  # a full disk raises here, not in the interpreter's shutdown
    except stopping.Stopped as stopped:
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
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    red, plain = ("\x1b[31m", "\x1b[0m") if coloured else ("", "")
    print(f"{red}{message}{plain}", file=sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (flushed again at exit)
    sys.exit(code)
