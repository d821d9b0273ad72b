"""`tide serve` in front of a server that fails for a single request: other clients are served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engines.openai.faults import FAULTS
from tests.engines.openai.server import TextServer
from tests.server.running import Running, running, wait_until
from tide.engines.openai import engine as engine_module
from tide.engines.openai.engine import OpenAIEngine

# A connection that hangs takes seconds; the engine's own tests cover it.
NAMES = [name for name in FAULTS if name != "hangs"]


@pytest.fixture(scope="module")
def upstream() -> Iterator[TextServer]:
    with TextServer() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def server(upstream: TextServer) -> Iterator[Running]:
    with (
        OpenAIEngine("tiny", base_url=upstream.url) as engine,
        running(
            engine, lambda texts: [0.1] * len(texts), strategy="backtrack", preset="relative"
        ) as server,
    ):
        yield server


def ready(server: Running) -> int:
    return server.http.get("/ready").status_code


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_fails_alone_and_soon(
    stream: bool, upstream: TextServer, server: Running
) -> None:
    upstream.faults = {f"<{name}>": fault for name, fault in FAULTS.items()}
    upstream.requests.clear()
    began = time.monotonic()
    with ThreadPoolExecutor(len(NAMES)) as clients:
        asked = [
            clients.submit(server.ask, f"A <{name}> text", max_tokens=6, stream=stream)
            for name in NAMES
        ]
        while not all(one.done() for one in asked):
            assert ready(server) == 200
            assert server.ask("A kind text", max_tokens=6).status_code == 200
        for name, answer in zip(NAMES, asked, strict=True):
            found = answer.result()
            assert (found.status_code, found.json()["error"]["code"]) == (500, "completion_error")
            assert found.headers["x-should-retry"] == "false"
            assert sum(f"<{name}>" in str(body) for body in upstream.requests) <= 5
    assert time.monotonic() - began < 30


def test_upstream_that_is_gone_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PATIENCE", 0.3)
    with (
        TextServer() as upstream,
        OpenAIEngine("tiny", base_url=upstream.url) as engine,
        running(
            engine, lambda texts: [0.1] * len(texts), strategy="backtrack", preset="relative"
        ) as server,
    ):
        assert server.ask("A kind text", max_tokens=6).status_code == 200
        upstream.stop()
        failed = server.ask("A kind text", max_tokens=6)
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_error")
        assert ready(server) == 503
        upstream.start()
        wait_until(lambda: ready(server) == 200)
        assert server.ask("A kind text", max_tokens=6).status_code == 200
