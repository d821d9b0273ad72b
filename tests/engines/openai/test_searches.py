"""Strategies on an engine without embeddings: some work, others are refused with a message."""

from __future__ import annotations

import pytest

from tests.engines.openai.server import TextServer
from tests.fakes import FakeScorer
from tide import Detoxifier
from tide.core.errors import InputError
from tide.engines.openai.engine import OpenAIEngine


def test_searches_that_move_the_prompt_say_that_they_cannot(text_engine: OpenAIEngine) -> None:
    with pytest.raises(InputError, match=r"random-walk: moves prompt embeddings.*does not have"):
        Detoxifier(text_engine, scorer=FakeScorer(), strategy="random-walk", preset="relative")


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
        scorer = FakeScorer(lambda text: 0.9 if "dull" in text.lower() else 0.05)
        detox = Detoxifier(engine, scorer=scorer, strategy="backtrack", preset="relative")
        result = detox("The weather is", temperature=0.0)
        assert result.trials[0].accepted
        assert len(engine.tokenize([result.text])[0]) >= 5
