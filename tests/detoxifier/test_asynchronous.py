from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tests.scripted_engine import ScriptedEngine
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import EngineError
from tide.core.results import Result
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Piece, Request

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0, "max_new_tokens": 9},
    {"top_p": 0.9, "temperature": 1.0},
    {"top_k": 5, "num_trials": 2},
    {"strategy": "random-walk"},
    {"strategy": "tide", "toxicity_threshold": 0.3},
    {"strategy": "resample", "seed": 4, "max_iterations": 3},
]
MANY = [(f"{PROMPTS[i % len(PROMPTS)]} {i}", SETTINGS[i % len(SETTINGS)]) for i in range(64)]


class Gated(ScriptedEngine):
    """Lets `through` requests through; the others wait until it is opened."""

    def __init__(self, through: int) -> None:
        super().__init__(scripted_engine()._respond, max_batch=64)
        self._through, self.begun, self.aborted = through, 0, 0
        self.open = threading.Event()

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        self.begun += 1
        try:
            while self.begun > self._through and not self.open.is_set():
                await asyncio.sleep(0.005)
        except BaseException:
            self.aborted += 1
            raise
        async for piece in super()._write(request):
            yield piece


def test_nothing_of_a_cancelled_call_is_scored_afterwards() -> None:
    """A third of the calls is cancelled, in drafts or in searches. The others are unchanged."""
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer())
    alone = [detox(prompt, **changes) for prompt, changes in MANY]
    through = 150
    engine, scorer = Gated(through), ReadingScorer()

    async def run() -> tuple[list[Any], list[int], int]:
        async with AsyncDetoxifier(engine, scorer=scorer) as detox:
            tasks = [asyncio.create_task(detox(prompt, **changes)) for prompt, changes in MANY]
            seen = -1
            while engine.begun <= through or engine.begun > seen:  # until all wait
                seen = engine.begun
                await asyncio.sleep(0.2)
            chosen = [i for i in range(64) if not tasks[i].done()][::3]
            for i in chosen:
                tasks[i].cancel()
            while engine.aborted == 0:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            before = len(scorer.calls)
            engine.open.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        return results, chosen, before

    results, chosen, before = asyncio.run(run())
    gone = [i for i, result in enumerate(results) if not isinstance(result, Result)]
    assert gone == chosen
    assert len(gone) >= 5
    assert all(isinstance(results[i], asyncio.CancelledError) for i in gone)
    assert all(results[i] == alone[i] for i in range(64) if i not in gone)
    texts = {e.text for i in gone for trial in alone[i].trials for e in trial.trace}
    kept = {e.text for i in range(64) if i not in gone for t in alone[i].trials for e in t.trace}
    later = {text for batch in scorer.calls[before:] for text in batch}
    assert later
    assert not later & (texts - kept)


def test_a_shared_engine_outlives_its_first_user() -> None:
    engine, scorer = Gated(0), ReadingScorer()

    async def run() -> None:
        other = AsyncDetoxifier(engine, scorer=scorer)
        kept = asyncio.create_task(other(PROMPTS[1]))
        async with AsyncDetoxifier(engine, scorer=scorer) as detox:
            ended = [asyncio.create_task(detox(PROMPTS[0])) for _ in range(3)]
            left = asyncio.create_task(detox(PROMPTS[2]))
            stream = detox.stream(PROMPTS[3])
            while engine.begun < 6:
                await asyncio.sleep(0.005)
            detox.close()
            left.cancel()  # meanwhile
        outcomes = await asyncio.gather(*ended, left, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EngineError] * 3 + [
            asyncio.CancelledError
        ]
        with pytest.raises(EngineError, match="closed"):
            await anext(stream)
        with pytest.raises(EngineError, match=r"^the detoxifier is closed; make a new one$"):
            await detox(PROMPTS[0])
        assert detox.closed
        assert not engine.closed
        assert not scorer.closed
        engine.open.set()
        expected = Detoxifier(scripted_engine(), scorer=ReadingScorer())
        assert await kept == expected(PROMPTS[1])
        async with AsyncDetoxifier(engine, scorer=scorer) as third:
            assert await third(PROMPTS[0]) == expected(PROMPTS[0])

    asyncio.run(run())
    engine.close()
