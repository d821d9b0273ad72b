"""Real vLLM servers on the loopback, on one CPU core each."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from tests.server.processes import answering

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


def serving_vllm(model: Path, log: Path, *options: str) -> AbstractContextManager[str]:
    """The address of `vllm serve` with a model. options: further options of its command."""
    # The package vllm-cpu cannot run `vllm serve`: it looks for its metadata as "vllm".
    return answering(
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--dtype", "float32", "--no-enable-chunked-prefill", "--enforce-eager",
        "--disable-uvicorn-access-log", *options, "--host", "127.0.0.1", "--port",
        log=log, seconds=_START_SECONDS, **cpu_environment(),
    )  # fmt: skip
