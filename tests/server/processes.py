"""Server processes, which may be killed. Imports nothing of TIDE: other environments use it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

TIDE = (sys.executable, "-m", "tide", "serve", "--port", "0")


class Process:
    """A command that prints its address to stderr as JSON: `{"serving": URL}`."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.popen = subprocess.Popen(
            command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
        )
        self._said: list[str] = []
        self._serving = threading.Event()
        self.url = ""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        self._serving.wait()
        if not self.url:
            self.kill()
            pytest.fail("".join(self._said))

    def _listen(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self._said.append(line)
            if '"serving"' in line:
                self.url = json.loads(line)["serving"]
                self._serving.set()
        self._serving.set()  # also if the process has ended

    def heard(self) -> str:
        """Its stderr so far."""
        return "".join(list(self._said))

    def said(self) -> str:
        """Its whole stderr, after it has ended."""
        self.popen.wait(60)
        self._listening.join()
        return "".join(self._said)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.popen.kill()
        self.said()
        assert self.popen.stderr is not None
        self.popen.stderr.close()


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[Process]:
    process = Process(*command, **environment)
    try:
        yield process
    finally:
        process.kill()


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
