"""Server processes, which may be killed. Imports nothing of TIDE: other environments use it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

TIDE = (sys.executable, "-m", "tide", "serve", "--port", "0")


class Process:
    """A command that prints its address to stderr as JSON: `{"serving": URL}`. log: its stderr."""

    def __init__(self, log: Path, *command: str, **environment: str) -> None:
        self._log = log
        with log.open("ab") as stderr:
            self.popen = subprocess.Popen(command, env={**os.environ, **environment}, stderr=stderr)
        while (serving := re.search(r'"serving": "(.*?)"', self.heard())) is None:
            if self.popen.poll() is not None:
                pytest.fail(self.heard())
            time.sleep(0.02)
        self.url = serving[1]

    def heard(self) -> str:
        """Its stderr so far."""
        return self._log.read_text("utf-8", "replace")

    def said(self) -> str:
        """Its whole stderr, after it has ended."""
        self.popen.wait(60)
        return self.heard()


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[Process]:
    with TemporaryDirectory() as folder:
        process = Process(Path(folder) / "log", *command, **environment)
        try:
            yield process
        finally:
            process.popen.kill()
            process.popen.wait(60)


@contextmanager
def answering(
    *command: str | Path, log: Path, seconds: float, health: str = "/health", **environment: str
) -> Iterator[str]:
    """The address of somebody else's server, once it is well; its output is in `log`.

    command: lacks its last argument, the port. health: the path that says whether it is well.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, port],
            env={**os.environ, **environment},
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                httpx.get(f"{url}{health}", timeout=5.0).raise_for_status()
                break
            except httpx.HTTPError:
                assert server.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < end
                time.sleep(0.2)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with the processes that it has started
        server.wait()
