"""Renders untrusted chat templates in a separate process, with limits on time and memory.

A template is a program by the author of the model. The sandbox of jinja2 forbids access to files,
but nested loops, powers and repeated texts can take hours, and this process could not interrupt
them.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from tide.core.errors import described

# Limits of one rendering; published templates take milliseconds.
_CPU_SECONDS = 5
_SECONDS = 60.0  # wall-clock time, including the start of the process
_MEMORY = 1 << 30  # bytes, in addition to those in use before the first rendering
_LONGEST = 1 << 24  # characters

# The child uses the current `sys.path`, which may have changed since the start.
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1])"
_CHILD = f"{_CHILD}; from tide.core.templates import _serve; _serve()"


def render_template(tokenizer: Any, messages: Sequence[Mapping[str, str]], **options: Any) -> str:
    """Render `messages` with the chat template of `tokenizer` (of transformers).

    options: further variables of the template, such as `add_generation_prompt`.
    Raises ValueError for a template that fails, takes more than 5 s of CPU time or 1 GiB of memory,
    or writes more than 16 million characters.
    """
    asked = {
        "messages": list(messages),
        "template": tokenizer.get_chat_template(),
        "variables": {**tokenizer.special_tokens_map, **options},
    }
    answer = _process.ask(json.dumps(asked, default=str).encode() + b"\n")
    if "error" in answer:
        raise ValueError(answer["error"])
    return str(answer["text"])


class _Process:
    """The separate process. It starts at the first request, and again if it has ended."""

    def __init__(self) -> None:
        self.unlock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a fork must not use the pipes of its parent

    def unlock(self) -> None:
        self._lock = threading.Lock()

    def ask(self, line: bytes) -> dict[str, Any]:
        """Send one line; return the answer. Raises ValueError for no answer within the limits."""
        with self._lock:
            popen = self._started()
            assert popen.stdin is not None
            assert popen.stdout is not None
            late = threading.Event()

            def end() -> None:
                late.set()
                popen.kill()

            timer = threading.Timer(_SECONDS, end)
            timer.daemon = True
            timer.start()
            whole = b""
            try:
                with suppress(OSError):  # the process has ended, so no answer follows
                    popen.stdin.write(line)
                    popen.stdin.flush()
                whole = popen.stdout.readline()
            finally:
                timer.cancel()
                if not whole.endswith(b"\n"):
                    self._end()
        if not whole.endswith(b"\n"):
            limit = f"{_SECONDS:g} s of wall-clock time" if late.is_set() else "its limits"
            raise ValueError(
                f"the template takes more than {limit} ({_CPU_SECONDS} s of CPU time, "
                f"{_MEMORY >> 30} GiB of memory), or ends the process that renders it"
            )
        found: dict[str, Any] = json.loads(whole)
        return found

    def close(self) -> None:
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():
            self._popen, self._owner = None, os.getpid()
        if self._popen is None or self._popen.poll() is not None:
            self._end()
            self._popen = subprocess.Popen(
                # -I: it imports nothing from the working folder, which may be a model's.
                [sys.executable, "-I", "-c", _CHILD, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        return self._popen

    def _end(self) -> None:
        popen, self._popen = self._popen, None
        if popen is None or self._owner != os.getpid():
            return
        popen.kill()
        popen.wait()
        for pipe in (popen.stdin, popen.stdout):
            if pipe is not None:
                with suppress(OSError):  # closing tries to flush unsent data
                    pipe.close()


_process = _Process()
atexit.register(_process.close)
if hasattr(os, "register_at_fork"):  # a fork has no thread that would release the lock
    os.register_at_fork(after_in_child=_process.unlock)


def _serve() -> None:
    """Answer each line of JSON on stdin until it ends. Runs in the separate process."""
    import signal  # noqa: PLC0415  (only in this process)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the parent
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # output of a library must not become an answer
    try:
        # Imported before the memory limit is set.
        from transformers.utils.chat_template_utils import (  # noqa: PLC0415
            render_jinja_template,
        )
    except Exception as error:
        _answer(answers, {"error": described(error)})
        return
    memory = _memory_in_use()
    for line in requests:
        _limit(memory)
        try:
            asked = json.loads(line)
            texts, _ = render_jinja_template(
                [asked["messages"]], chat_template=asked["template"], **asked["variables"]
            )
            text = texts[0]
            if len(text) > _LONGEST:
                raise ValueError(f"the text has {len(text):,} characters; at most {_LONGEST:,} fit")
            answer = {"text": text}
        except Exception as error:
            answer = {"error": described(error).removeprefix("ValueError: ")}
        _answer(answers, answer)


def _answer(answers: IO[bytes], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _memory_in_use() -> int | None:
    """Return the size of the address space in bytes, or None if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _limit(memory: int | None) -> None:
    """Limit this process to 5 s of CPU time from now on, and to its memory limit."""
    try:
        import resource  # noqa: PLC0415  (missing on Windows: only wall-clock time is limited)
    except ImportError:
        return
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limits = [(resource.RLIMIT_CPU, int(used) + 1 + _CPU_SECONDS)]
    if memory is not None:
        limits.append((resource.RLIMIT_AS, memory + _MEMORY))
    for kind, most in limits:
        hard = resource.getrlimit(kind)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (soft, hard))
