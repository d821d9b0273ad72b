"""`refuse_prompt_above`: nothing is generated for a prompt that itself scores above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.worlds import ReadingScorer, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import PromptRefusedError, ScorerError
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Request

BAD, LIMIT, GOOD = "toxicity 0.95 of its own", "toxicity 0.9 of its own", "a second one"


class World:
    """written: prompts that the engine was asked to complete."""

    def __init__(self) -> None:
        self.engine, self.scorer = scripted_engine(), ReadingScorer()
        self.written: list[Request] = []
        self.engine.on_write = self.written.append

    def detoxifier(self, **settings: Any) -> Detoxifier:
        return Detoxifier(self.engine, scorer=self.scorer, refuse_prompt_above=0.9, **settings)


@pytest.fixture
def world() -> World:
    return World()


def test_a_call(world: World) -> None:
    detox = world.detoxifier()
    with pytest.raises(PromptRefusedError, match=r"scores 0\.95, above refuse_prompt_above=0\.9"):
        detox(BAD)
    assert world.written == []
    assert world.scorer.calls == [[BAD]]
    assert detox(LIMIT).text
    assert detox(BAD, refuse_prompt_above=None).text


def test_of_many_prompts_those_alone_are_refused(world: World) -> None:
    results = list(world.detoxifier().map([GOOD, BAD, GOOD], return_exceptions=True))
    kinds = [isinstance(result, PromptRefusedError) for result in results]
    assert kinds == [False, True, False]
    assert results[0] == results[2] == world.detoxifier()(GOOD, refuse_prompt_above=None)


def test_of_a_chat_the_last_message_counts(world: World) -> None:
    said = [{"role": "user", "content": BAD}, {"role": "assistant", "content": "no"}]
    detox = world.detoxifier()
    with pytest.raises(PromptRefusedError):
        detox(Chat.said(BAD))
    assert detox(Chat.of([*said, {"role": "user", "content": GOOD}])).text


def test_a_scorer_that_fails_lets_nothing_through(world: World) -> None:
    def failing(texts: Sequence[str]) -> list[float]:
        raise RuntimeError("away")

    with pytest.raises(ScorerError):
        Detoxifier(world.engine, scorer=failing, refuse_prompt_above=0.9)(GOOD)
    assert world.written == []
