"""`refuse_prompt_above`: nothing is generated for a prompt that itself scores above it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeScorer
from tests.worlds import ReadingScorer, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import PromptRefusedError, ScorerError
from tide.detoxifier.sync import Detoxifier

BAD, LIMIT, GOOD = "toxicity 0.95 of its own", "toxicity 0.9 of its own", "a second one"


def detoxifier(scorer: FakeScorer) -> Detoxifier:
    return Detoxifier(scripted_engine(), scorer=scorer, refuse_prompt_above=0.9)


def test_a_prompt_above_the_limit_is_refused_before_anything_is_written() -> None:
    scorer = ReadingScorer()
    detox: Any = detoxifier(scorer)
    with pytest.raises(PromptRefusedError, match=r"scores 0\.95, above refuse_prompt_above=0\.9"):
        detox(BAD)
    assert detox.engine.requests == []
    assert scorer.calls == [[BAD]]
    assert detox(LIMIT).text
    assert detox(BAD, refuse_prompt_above=None).text


def test_of_many_prompts_those_alone_are_refused() -> None:
    detox = detoxifier(ReadingScorer())
    first, refused, second = detox.map([GOOD, BAD, GOOD], return_exceptions=True)
    assert isinstance(refused, PromptRefusedError)
    assert first == second == detox(GOOD, refuse_prompt_above=None)


def test_of_a_chat_the_last_message_counts() -> None:
    detox = detoxifier(ReadingScorer())
    with pytest.raises(PromptRefusedError):
        detox(Chat.said(BAD))
    texts = [("user", BAD), ("assistant", "no"), ("user", GOOD)]
    assert detox.chat([{"role": role, "content": content} for role, content in texts]).text


def test_without_a_score_of_the_prompt_nothing_is_written() -> None:
    def failing(text: str) -> float:
        raise RuntimeError("away")

    detox: Any = detoxifier(FakeScorer(failing))
    with pytest.raises(ScorerError):
        detox(GOOD)
    assert detox.engine.requests == []
