"""A gateway before `transformers serve`, with the bundled chat model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.processes import answering, free_port
from tests.server.running import PATIENCE, Running, counted, running, wait_until
from tests.server.transparent import differing, other_texts
from tide import pocket
from tide.engines.openai.engine import OpenAIEngine

pytestmark = pytest.mark.slow

MODEL = str(pocket.CHAT)
STARTING = 300.0


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [Path(sys.executable).with_name("transformers"), "serve", MODEL]
    command += ["--host", "127.0.0.1", "--port", port, "--device", "cpu", "--dtype", "float32"]
    log = tmp_path_factory.mktemp("serve") / "log"
    with answering(command, f"{address}/health", log, STARTING):
        yield address


def harmless(texts: list[str]) -> np.ndarray:
    return np.zeros(len(texts))


@pytest.fixture(params=["enforce", "monitor"])
def gateway(upstream: str, request: pytest.FixtureRequest) -> Iterator[Running]:
    mode: Any = request.param
    with (
        OpenAIEngine(MODEL, base_url=upstream, max_batch=1) as engine,
        running(engine, harmless, mode=mode, preset="backtrack") as server,
    ):
        yield server


@pytest.mark.parametrize("gateway", ["monitor"], indirect=True)
def test_monitored_answers_are_the_servers_bytes(upstream: str, gateway: Running) -> None:
    assert differing(upstream, gateway.url, MODEL, 100) == []
    outcomes = ("unchanged", "failed", "changed")
    wait_until(lambda: sum(counted(gateway, outcome) for outcome in outcomes) >= 90, PATIENCE)


@pytest.mark.parametrize("gateway", ["enforce"], indirect=True)
def test_clean_answers_are_the_servers_own_text(upstream: str, gateway: Running) -> None:
    assert other_texts(upstream, gateway.url, MODEL, 50) == []
