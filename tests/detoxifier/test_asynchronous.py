from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import EngineError, InputError, ScorerUnavailable, TideError
from tide.core.results import Result
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0, "max_new_tokens": 9},
    {"top_p": 0.9, "temperature": 1.0},
    {"top_k": 5, "num_trials": 2},
    {"strategy": "ladder", "num_samples": 2},
    {"strategy": "accept-any", "toxicity_threshold": 0.3},
    {"strategy": "resample", "seed": 4, "max_iterations": 3},
]
MANY = [(f"{PROMPTS[i % len(PROMPTS)]} {i}", SETTINGS[i % len(SETTINGS)]) for i in range(64)]


async def together(detox: AsyncDetoxifier) -> list[Result]:
    return await asyncio.gather(*(detox(prompt, **changes) for prompt, changes in MANY))


def test_calls_with_different_settings_share_engine_calls() -> None:
    async def run() -> list[Result]:
        async with AsyncDetoxifier(engine, scorer=ReadingScorer()) as detox:
            return await together(detox)

    engine = scripted_engine(max_batch=64)
    results = asyncio.run(run())
    alone = Detoxifier(scripted_engine(), scorer=ReadingScorer())
    assert results == [alone(prompt, **changes) for prompt, changes in MANY]
    plain = scripted_engine(max_batch=64)
    one_map = Detoxifier(plain, scorer=ReadingScorer())
    assert len(list(one_map.map(prompt for prompt, _ in MANY))) == len(MANY)
    assert len(engine.calls) <= 1.3 * len(plain.calls)


def test_callers_that_call_again_share_engine_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tide.detoxifier.asynchronous._WAIT", 5.0
    )  # a full batch is waited for no longer
    monkeypatch.setattr("tide.detoxifier.asynchronous._LONGEST_WAIT", 20.0)

    async def run() -> None:
        async def caller(number: int) -> None:
            for again in range(5):
                await asyncio.sleep(number / 1000)
                await detox(f"{PROMPTS[0]} {number} {again}", toxicity_threshold=0.99)

        async with AsyncDetoxifier(engine, scorer=ReadingScorer()) as detox:
            await asyncio.gather(*map(caller, range(8)))

    engine = scripted_engine(max_batch=8)
    asyncio.run(run())
    assert engine.calls == [8] * 5


def test_nothing_of_a_cancelled_call_is_scored_afterwards() -> None:
    alone = Detoxifier(scripted_engine(), scorer=ReadingScorer())
    expected = [alone(prompt, **changes) for prompt, changes in MANY]
    engine, scorer = scripted_engine(max_batch=64), ReadingScorer()
    writing, go_on = threading.Event(), threading.Event()
    complete = engine.complete

    def gated(*arguments: Any) -> Any:
        if len(engine.calls) == 4:
            while len(scorer.batches) < 4:  # what was written before has been scored
                pass
            writing.set()
            assert go_on.wait(20)
        return complete(*arguments)

    engine.complete = gated  # type: ignore[method-assign]

    async def run() -> tuple[list[Any], int]:
        async with AsyncDetoxifier(engine, scorer=scorer) as detox:
            tasks = [asyncio.create_task(detox(prompt, **changes)) for prompt, changes in MANY]
            assert await asyncio.to_thread(writing.wait, 20)
            chosen = [i for i in range(64) if not tasks[i].done()][:20]
            for i in chosen:
                tasks[i].cancel()
            await asyncio.sleep(0)
            before = len(scorer.batches)
            go_on.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [i for i, r in enumerate(results) if isinstance(r, asyncio.CancelledError)] == chosen
        return results, before

    results, before = asyncio.run(run())
    gone = [i for i, result in enumerate(results) if not isinstance(result, Result)]
    assert len(gone) == 20
    assert all(results[i] == expected[i] for i in range(64) if i not in gone)
    texts = {e.text for i in gone for trial in expected[i].trials for e in trial.trace}
    kept = {e.text for i in range(64) if i not in gone for t in expected[i].trials for e in t.trace}
    later = {text for batch in scorer.batches[before:] for text in batch}
    assert later
    assert not later & (texts - kept)


def test_a_call_that_is_cancelled_before_it_is_taken_in_costs_nothing() -> None:
    async def run() -> None:
        async with AsyncDetoxifier(engine, scorer=ReadingScorer()) as detox:
            task = asyncio.create_task(detox(PROMPTS[0]))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await detox(PROMPTS[1])

    engine = scripted_engine()
    asyncio.run(run())


def test_errors_are_those_of_their_calls() -> None:
    def scorer(texts: list[str]) -> list[float]:
        if down:
            raise ScorerUnavailable("down")
        return list(ReadingScorer().score(texts))

    async def run() -> None:
        async with AsyncDetoxifier(scripted_engine(), scorer=scorer) as detox:
            found = await asyncio.gather(detox(""), detox(PROMPTS[0]), return_exceptions=True)
            assert isinstance(found[0], InputError)
            assert isinstance(found[1], Result)
            with pytest.raises(InputError, match="num_samples"):
                await detox(PROMPTS[0], num_samples=0)
            down.append(True)
            found = await asyncio.gather(*map(detox, PROMPTS), return_exceptions=True)
            assert {type(one) for one in found} == {ScorerUnavailable}
            down.clear()
            assert isinstance(await detox(PROMPTS[0]), Result)

    down: list[bool] = []
    asyncio.run(run())


def test_closing_ends_what_is_under_way() -> None:
    async def run() -> None:
        detox = AsyncDetoxifier(scripted_engine(), scorer=ReadingScorer())
        tasks = [asyncio.create_task(detox(prompt, num_trials=50)) for prompt in PROMPTS]
        await asyncio.sleep(0)
        await detox.aclose()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, Result | EngineError) for one in found)
        with pytest.raises(EngineError, match="closed"):
            await detox(PROMPTS[0])
        await detox.aclose()

    asyncio.run(run())


def test_a_bug_in_the_thread_reaches_every_call() -> None:
    def broken(*arguments: Any) -> Any:
        raise ZeroDivisionError("a bug")

    async def run() -> None:
        engine = scripted_engine()
        engine.embed = broken  # type: ignore[method-assign]
        detox = AsyncDetoxifier(engine, scorer=ReadingScorer())
        found = await asyncio.gather(*map(detox, PROMPTS), return_exceptions=True)
        assert all(isinstance(one, ZeroDivisionError | TideError) for one in found)
        with pytest.raises(EngineError, match="closed"):
            await detox(PROMPTS[0])
        detox.close()

    asyncio.run(run())


def test_the_bundled_model_serves_concurrent_calls_as_it_does_alone() -> None:
    async def run() -> list[Result]:
        async with AsyncDetoxifier() as detox:
            return await asyncio.gather(*(detox(prompt, **changes) for prompt, changes in MANY))

    results = asyncio.run(run())
    alone = Detoxifier()
    assert [[trial.text for trial in result.trials] for result in results] == [
        [trial.text for trial in alone(prompt, **changes).trials] for prompt, changes in MANY
    ]
