"""Real vLLM servers on the loopback, on one CPU core each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.server.processes import answering, free_port
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


@contextmanager
def serving_vllm(model: Path, log: Path, *options: str) -> Iterator[str]:
    """The address of `vllm serve` with a model. options: further options of its command."""
    # The package vllm-cpu cannot run `vllm serve`: it looks for its metadata as "vllm".
    module = "vllm.entrypoints.openai.api_server"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", module, "--model", str(model), "--dtype", "float32",
        "--host", "127.0.0.1", "--port", port, *options,
        "--no-enable-chunked-prefill", "--enforce-eager", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    with answering(command, f"{url}/health", log, _START_SECONDS, **cpu_environment()):
        yield url


def serving_chats(log: Path, *options: str) -> AbstractContextManager[str]:
    """The address of a server of the bundled chat model, without prompt embeddings."""
    return serving_vllm(pocket.CHAT, log, "--max-model-len", "512", *options)
