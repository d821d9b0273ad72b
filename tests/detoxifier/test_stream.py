"""A stream yields accepted text alone, all of it, and then the result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.runtime.test_answer import both, second
from tests.runtime.world import (
    PROMPT,
    SETTINGS,
    Reader,
    Storyteller,
    never,
    sentence,
    story,
    text,
    third,
    third_always,
    third_unless_second_moved,
)
from tide.core.errors import EngineError, InputError, ScorerError, TideError, UnresolvedError
from tide.core.results import Result
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier

FIVE = [sentence(f"Good{i}") for i in range(6)]


def streamed(detox: Detoxifier, way: str, **changes: Any) -> tuple[list[str], Any]:
    """The texts, and the result or the error, of a stream of either kind."""
    texts: list[str] = []
    last: list[Any] = []

    def take(item: Any) -> None:
        assert not last
        (texts if isinstance(item, str) else last).append(item)

    async def run() -> None:
        aio = AsyncDetoxifier(detox.engine, scorer=detox.scorer, settings=detox.settings)
        try:
            async for item in aio.stream(PROMPT, **changes):
                take(item)
        finally:
            await aio.aclose()

    try:
        if way == "async":
            asyncio.run(run())
        else:
            for item in detox.stream(PROMPT, **changes):
                take(item)
    except TideError as error:
        last.append(error)
    return texts, last[0]


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("case", [never, third, second])
def test_a_stream_is_the_text_of_the_result(case: Any, way: str) -> None:
    texts, result = streamed(story(case), way)
    assert "".join(texts) == result.text
    assert texts == [block.text for block in result.best.blocks]
    assert result.accepted
    assert result.best.streamed == len(texts)
    alone = story(case)(PROMPT)
    assert result.text == alone.text
    assert result.best.blocks == alone.best.blocks


@pytest.mark.parametrize("case", [third_always, third_unless_second_moved])
@pytest.mark.parametrize("on_unresolved", ["best", "refuse", "raise"])
def test_what_was_yielded_is_never_given_up(case: Any, on_unresolved: str, way: str) -> None:
    texts, result = streamed(story(case), way, on_unresolved=on_unresolved)
    assert texts == FIVE[:2]
    if on_unresolved == "raise":
        assert isinstance(result, UnresolvedError)
        return
    assert result.text == "".join(texts)
    assert (result.accepted, result.best.refused, result.best.streamed) == (False, True, 2)
    assert "Bad2" in result.best.returned.text
    assert result == Result.model_validate_json(result.model_dump_json())


def test_a_whole_that_fails_is_told_by_the_result(way: str) -> None:
    texts, result = streamed(story(never, Reader(both), block_context=8), way)
    assert texts == FIVE
    assert result.text == "".join(texts)
    assert (result.accepted, result.best.refused, result.toxicity) == (False, True, 0.9)


@pytest.mark.parametrize("case", [never, third])
def test_a_short_answer_is_one_text(case: Any, way: str) -> None:
    texts, result = streamed(story(case), way, block_tokens=0)
    assert texts == [result.text]
    texts, result = streamed(story(third_always), way, block_tokens=0)
    assert (texts, result.text, result.best.refused) == ([], "", True)


def test_a_block_is_there_before_the_next_is_written(way: str) -> None:
    """Nothing waits for the end of the answer."""

    def slow(number: int, moved: bool, words: list[str | None]) -> bool:
        if number == 4:
            assert told.wait(20)
        return False

    class Telling(Reader):
        def score(self, texts: Sequence[str]) -> Any:
            return super().score(texts)

    told = threading.Event()
    detox = story(slow, Telling(), draft_tokens=8)

    async def run() -> list[Any]:
        items = []
        async with AsyncDetoxifier(
            detox.engine, scorer=detox.scorer, settings=detox.settings
        ) as aio:
            async for item in aio.stream(PROMPT):
                items.append(item)
                told.set()
        return items

    def here() -> list[Any]:
        items = []
        for item in detox.stream(PROMPT):
            items.append(item)
            told.set()
        return items

    items = asyncio.run(run()) if way == "async" else here()
    assert items[:-1] == FIVE


def test_a_scorer_that_dies_in_the_middle(way: str) -> None:
    """What was accepted before is there, nothing unscored is, and then the typed error."""

    class Dying(Reader):
        def score(self, texts: Sequence[str]) -> Any:
            if any("Good3" in one for one in texts):
                raise RuntimeError("out of memory")
            return super().score(texts)

    scorer = Dying()
    texts, error = streamed(story(never, scorer), way)
    assert isinstance(error, ScorerError)
    assert "out of memory" in str(error)
    assert texts == FIVE[: len(texts)]
    assert 1 <= len(texts) <= 3
    for count in range(len(texts)):
        assert "".join(texts[: count + 1]) in scorer.sent


def test_an_engine_that_dies_in_the_middle(way: str) -> None:
    detox = story(never)
    engine: Any = detox.engine
    complete = engine.complete

    def dying(*arguments: Any) -> Any:
        if len(engine.calls) == 3:
            raise RuntimeError("out of memory")
        return complete(*arguments)

    engine.complete = dying
    texts, error = streamed(detox, way)
    assert isinstance(error, EngineError)
    assert texts == FIVE[: len(texts)]
    assert texts


def test_what_cannot_be_streamed_is_told(way: str) -> None:
    for changes in ({"num_trials": 2}, {"num_samples": 0}):
        _, error = streamed(story(never), way, **changes)
        assert isinstance(error, InputError)
    _, error = streamed(story(never), way, max_new_tokens=126)
    assert "exceed the model's context of 128" in str(error)


def test_leaving_an_async_stream_ends_its_work() -> None:
    scorer = Reader()
    engine = Storyteller(never, sentences=60, context_length=None)
    slow = engine.complete

    def complete(*arguments: Any) -> Any:
        time.sleep(0.01)
        return slow(*arguments)

    engine.complete = complete  # type: ignore[method-assign]

    async def run() -> None:
        settings = {**SETTINGS, "max_new_tokens": 480}
        async with AsyncDetoxifier(engine, scorer=scorer, **settings) as detox:
            stream = detox.stream(PROMPT)
            assert await anext(stream) == FIVE[0]
            await stream.aclose()
            await asyncio.sleep(0.1)
            calls, sent = len(engine.calls), len(scorer.sent)
            await asyncio.sleep(0.2)
            assert (len(engine.calls), len(scorer.sent)) == (calls, sent)
            assert calls < 10

            async def reads() -> None:
                async for _ in detox.stream(PROMPT):
                    pass

            task = asyncio.create_task(reads())
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            calls = len(engine.calls)
            await asyncio.sleep(0.2)
            assert len(engine.calls) == calls
            assert (await detox("and then there were", max_new_tokens=100)).accepted

    asyncio.run(run())


def test_leaving_a_stream_ends_its_work() -> None:
    scorer = Reader()
    detox = story(never, scorer)
    stream = detox.stream(PROMPT)
    assert next(stream) == FIVE[0]
    stream.close()
    count = len(scorer.sent)
    time.sleep(0.05)
    assert len(scorer.sent) == count


def test_many_streams_share_engine_calls() -> None:
    prompts = ["once upon a time", "an other tale here", "and again a time", "so it is told"]

    async def read(detox: AsyncDetoxifier, prompt: str) -> list[Any]:
        return [item async for item in detox.stream(prompt)]

    async def run() -> list[list[Any]]:
        async with AsyncDetoxifier(engine, scorer=Reader(), **SETTINGS) as detox:
            return await asyncio.gather(*(read(detox, prompt) for prompt in prompts))

    engine = Storyteller(third)
    found = asyncio.run(run())
    alone = [list(story(third).stream(prompt)) for prompt in prompts]
    assert found == alone
    assert text("Good0") == alone[0][0]
    one = Storyteller(third)
    list(Detoxifier(one, scorer=Reader(), **SETTINGS).stream(PROMPT))
    assert len(engine.calls) < 3 * len(one.calls)
