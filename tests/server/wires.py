"""What the tests of /v1/responses and /v1/messages share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.server.running import Running, running
from tide.core.errors import ScorerUnavailableError
from tide.engines.openai.engine import OpenAIEngine

TEXT = "The river is wide. It runs to the sea. The town is on its left bank."
LAG: dict[str, Any] = {"strategy": "backtrack:lag=0"}


def says(server: TextServer, *said: Said) -> None:
    """Let the model give these answers in turn, and then repeat the last one."""
    left = list(said)
    server.message = lambda _: WIRES["vLLM"](left.pop(0) if len(left) > 1 else left[0])


@contextmanager
def losing_its_scorer(text_server: TextServer) -> Iterator[Running]:
    """A gateway to a model that writes TEXT; its scorer fails in the last sentence."""

    def scorer(texts: list[str]) -> list[float]:
        if any("left" in text for text in texts):
            raise ScorerUnavailableError("down")
        return [0.0] * len(texts)

    says(text_server, Said(TEXT))
    text_server.pause = 0.02  # each event arrives alone
    with (
        OpenAIEngine("tiny", base_url=text_server.url) as engine,
        running(engine, scorer, strategy="backtrack:pace=word,lag=0") as server,
    ):
        yield server
