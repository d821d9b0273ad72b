"""A stream yields only accepted text, and all of it; then it has the result.

Streams with asyncio: tests/test_promise.py and test_doors.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime.world import (
    PROMPT,
    SETTINGS,
    WORDS,
    Reader,
    Storyteller,
    never,
    second,
    sentence,
    story,
    third,
    third_always,
)
from tide.core.errors import EngineError, InputError, TideError, UnresolvedError
from tide.core.results import Result
from tide.detoxifier.asynchronous import AsyncDetoxifier, AsyncTextStream
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Request

SENTENCES = [sentence(f"Good{i}") for i in range(6)]


def streamed(detox: Detoxifier, **changes: Any) -> tuple[list[str], Any]:
    """The texts of a stream, and its result or error."""
    texts: list[str] = []
    try:
        with detox.stream(PROMPT, **changes) as stream:
            for text in stream:
                texts.append(text)
        return texts, stream.result
    except TideError as error:
        return texts, error


@pytest.mark.parametrize("case", [never, third, second])
def test_a_stream_is_the_text_of_the_result(case: Any) -> None:
    texts, result = streamed(story(case))
    assert "".join(texts) == result.text
    assert len(texts) == 6
    assert result.accepted
    alone = story(case)(PROMPT)
    assert result.text == alone.text
    assert result.best.trace == alone.best.trace


@pytest.mark.parametrize("on_unresolved", ["best", "refuse", "raise"])
def test_stream_keeps_its_text_if_the_answer_cannot_be_repaired(on_unresolved: str) -> None:
    texts, result = streamed(story(third_always), on_unresolved=on_unresolved)
    assert texts == SENTENCES[:2]
    if on_unresolved == "raise":
        assert isinstance(result, UnresolvedError)
        return
    assert result.text == "".join(texts)
    assert (result.accepted, result.best.refused) == (False, True)
    assert (result.best.shown, result.best.shown_tokens) == ("".join(texts), 2 * WORDS)
    assert "Bad2" in result.best.returned.text
    assert result == Result.model_validate_json(result.model_dump_json())


@pytest.mark.parametrize("case", [never, third])
def test_a_searched_answer_is_one_text(case: Any) -> None:
    texts, result = streamed(story(case, strategy="random-walk"))
    assert texts == [result.text]
    texts, result = streamed(story(third_always, strategy="random-walk"))
    assert (texts, result.text, result.best.refused) == ([], "", True)


def test_stream_refuses_several_trials_and_long_answers() -> None:
    for changes in ({"num_trials": 2}, {"num_samples": 0}):
        _, error = streamed(story(never), **changes)
        assert isinstance(error, InputError)
    _, error = streamed(story(never), max_new_tokens=126)
    assert "maximum context length is 128 tokens" in str(error)


class Stalling(Storyteller):
    """Writes two sentences, and a word of the third."""

    async def _pause(self, request: Request, written: int) -> None:
        await asyncio.sleep(60 if written > 2 * WORDS else 0)


def test_closed_stream_raises() -> None:
    closed = "its stream or the detoxifier was closed"

    async def run() -> None:
        async with AsyncDetoxifier(Stalling(never), scorer=Reader(), **SETTINGS) as detox:
            with pytest.raises(InputError, match="must be 1 for a stream"):
                detox.stream(PROMPT, num_trials=2)
            async with detox.stream(PROMPT) as stream:
                await anext(stream)
                with pytest.raises(EngineError, match="not complete yet"):
                    _ = stream.result
            with pytest.raises(EngineError, match=closed):
                await asyncio.wait_for(_read(stream), 5)
            with pytest.raises(EngineError, match=closed):
                _ = stream.result

    asyncio.run(run())
    with Detoxifier(Stalling(never), scorer=Reader(), **SETTINGS) as detox:
        with detox.stream(PROMPT) as stream:
            next(stream)
        with pytest.raises(EngineError, match=closed):
            list(stream)
        with pytest.raises(EngineError, match=closed):
            _ = stream.result


async def _read(stream: AsyncTextStream) -> list[str]:
    return [text async for text in stream]
