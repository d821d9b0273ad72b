"""Real vLLM servers on the loopback, on one CPU core each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tide import pocket

_START_SECONDS = 600.0  # of which a busy machine needs a few minutes


def cpu_environment() -> dict[str, str]:
    """Environment of a vLLM: little memory, and one core, another in each process of tests."""
    cores = sorted(os.sched_getaffinity(0))
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(cores[worker % len(cores)]),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": "1",
    }


class VllmProcess:
    """`vllm serve` with a model; `kill` and `start` keep the address.

    options: further options of its command.
    """

    def __init__(self, log: Path, model: Path, options: tuple[str, ...]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}"
        self._model, self._options = model, options
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start; does not wait until it is ready."""
        # The package vllm-cpu cannot run `vllm serve`: it looks for its metadata as "vllm".
        module = "vllm.entrypoints.openai.api_server"
        command = [
            sys.executable, "-m", module, "--model", str(self._model), "--dtype", "float32",
            "--host", "127.0.0.1", "--port", str(self._port), *self._options,
            "--no-enable-chunked-prefill", "--enforce-eager",
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **cpu_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until it answers."""
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"vLLM stopped:\n{self._log.read_text()[-3000:]}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5.0).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise TimeoutError(f"{self.url} did not start:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """Send SIGKILL (-9), to all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def chat_process(log: Path, *options: str) -> Iterator[VllmProcess]:
    """A server of the bundled chat model, without prompt embeddings."""
    server = VllmProcess(log, pocket.CHAT, ("--max-model-len", "512", *options))
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.kill()
