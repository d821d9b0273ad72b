"""Tests with the real vLLM; `make test-vllm` runs them in an environment of their own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.servers import cpu_environment
from tide.data.texts import read_rows
from tide.engines.local.engine import TransformersEngine
from tide.engines.vllm import VllmEngine


@pytest.fixture(scope="session")
def prompts(shared_data: Path) -> list[str]:
    rows = read_rows(shared_data / "benchmarks" / "rtp_challenging.jsonl", limit=200)
    return [row.text for row in rows]


@pytest.fixture(scope="session")
def local() -> TransformersEngine:
    return TransformersEngine("pocket")


@pytest.fixture(scope="session")
def engine() -> Iterator[VllmEngine]:
    os.environ.update(cpu_environment())
    engine = VllmEngine("pocket", dtype="float32", enforce_eager=True)
    yield engine
    engine.close()
    del engine
    gc.collect()  # what vLLM leaves open warns here, and not at the end of all tests


@pytest.fixture(scope="session")
def short_prompts(local: TransformersEngine, prompts: list[str]) -> list[str]:
    """Prompts that leave room for a long answer."""
    return [prompt for prompt in prompts if len(local.tokenize([prompt])[0]) < 50]
