"""Strategies on an engine without embeddings: some work, others are refused with a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.openai.server import TextServer
from tide import Detoxifier
from tide.core.errors import InputError
from tide.engines.openai.engine import OpenAIEngine


def dull(texts: list[str]) -> list[float]:
    return [0.9 if "dull" in text.lower() else 0.05 for text in texts]


def detoxifier(engine: OpenAIEngine, strategy: str, **settings: Any) -> Detoxifier:
    settings = {"temperature": 0.7, "preset": "relative", **settings}
    return Detoxifier(engine, scorer=dull, strategy=strategy, **settings)


def test_searches_that_move_the_prompt_say_that_they_cannot(text_engine: OpenAIEngine) -> None:
    with pytest.raises(
        InputError, match=r"random-walk: moves prompt embeddings.*does not have"
    ) as error:
        detoxifier(text_engine, "random-walk")("The weather is")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("patient", [True, False])
def test_a_broken_off_text_is_no_repair(patient: bool) -> None:
    """If the blamed word is banned, the model prefers to end: that is banned for some words."""
    with TextServer(patient=patient) as server, OpenAIEngine("tiny", base_url=server.url) as engine:
        server.favourite = " dull"
        server.ends = lambda text: text.endswith(" is")
        honest = server.written
        server.written = lambda text, body: (  # type: ignore[method-assign]
            honest(text, body)
            if "logit_bias" in body
            else ([" dull"] * body["max_tokens"], "length")
        )
        result = detoxifier(engine, "backtrack", temperature=0.0)("The weather is")
        assert result.trials[0].accepted
        assert len(engine.tokenize([result.text])[0]) >= 5
