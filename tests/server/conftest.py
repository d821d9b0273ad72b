from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from tests.engines.openai.messages import Said
from tests.engines.openai.server import TextServer
from tests.fakes import RudeScorer
from tests.server.gateways import BAD, Serve, says
from tests.server.running import Running, running
from tide.engines.openai.engine import OpenAIEngine


@pytest.fixture(scope="module")
def started(text_engine: OpenAIEngine) -> Iterator[Serve]:
    """Starts a gateway with given options, or returns the one that was started with them."""
    with ExitStack() as stack:

        @cache
        def start(**options: Any) -> Running:
            options = {"preset": "backtrack", "toxicity_threshold": 0.5, **options}
            return stack.enter_context(running(text_engine, RudeScorer(BAD), **options))

        yield start


@pytest.fixture
def serve(upstream: TextServer, started: Serve) -> Serve:
    """Return a gateway before `upstream`, whose model gives these answers to chats in turn."""

    def serve(*said: Said, wire: str = "vLLM", **options: Any) -> Running:
        if said:
            says(upstream, *said, wire=wire)
        server = started(**options)
        server.scorer.calls.clear()
        upstream.requests.clear()
        return server

    return serve
