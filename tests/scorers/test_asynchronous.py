"""Asynchronous scorers: all calls run in one loop, and are cancelled when nobody waits."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.scorers.services.stand_ins import Perspective, running
from tests.worlds import PROMPTS, scripted_engine
from tide.core.errors import DeadlineError, ScorerError, ScorerUnavailableError
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier
from tide.scorers import AsyncScorer, load_scorer, score_texts
from tide.scorers.base import Scorer
from tide.scorers.services import PerspectiveScorer
from tide.scorers.wrappers import CachedScorer, MaxScorer

TEXTS = ["one text", "another", "a third one"]


async def by_length(texts: list[str]) -> list[float]:
    await asyncio.sleep(0)
    return [len(text) / 100 for text in texts]


class Loops(AsyncScorer):
    """Scores by length, and records the loops in which it was called."""

    name, threshold = "loops@1", 0.5

    def __init__(self) -> None:
        self.loops: set[Any] = set()

    async def score(self, texts: Sequence[str]) -> Any:
        self.loops.add(asyncio.get_running_loop())
        return await by_length(list(texts))


class Hangs(Loops):
    """Never returns. reached, cancelled: set when a call starts, and when it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.cancelled = threading.Event(), threading.Event()

    async def score(self, texts: Sequence[str]) -> Any:
        self.reached.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_all_calls_are_awaited_in_one_loop() -> None:
    scorer = Loops()
    assert load_scorer(scorer) is scorer
    callers = [threading.Thread(target=score_texts, args=(scorer, TEXTS)) for _ in "abc"]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert score_texts(MaxScorer([scorer, scorer]), TEXTS).values[0] == 0.08

    async def inside(scorer: Any) -> Any:
        return score_texts(scorer, TEXTS).values

    assert asyncio.run(inside(scorer))[1] == 0.07
    assert len(scorer.loops) == 1
    thread = next(thread for thread in threading.enumerate() if thread.name == "tide Loops")
    del scorer, callers
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (TimeoutError("late"), ScorerUnavailableError, "late"),
        (KeyboardInterrupt(), ScorerError, "KeyboardInterrupt"),
        (asyncio.CancelledError(), ScorerError, "the work was cancelled"),
    ],
)
def test_what_it_raises_is_an_error_and_never_a_score(
    error: BaseException, kind: type[ScorerError], says: str
) -> None:
    fails = True

    async def fail(texts: list[str]) -> list[float]:
        if fails:
            raise error
        return await by_length(texts)

    scorer = load_scorer(fail)
    assert scorer.name.startswith("callable:")
    with pytest.raises(kind, match=says) as caught:
        score_texts(scorer, TEXTS)
    assert type(caught.value) is kind
    fails = False
    assert score_texts(scorer, TEXTS).values == pytest.approx([0.08, 0.07, 0.11])
    scorer.close()
    with pytest.raises(ScorerError, match="the scorer is closed; make a new one"):
        score_texts(scorer, TEXTS)


@pytest.mark.parametrize(
    ("way", "around"),
    [("deadline", ""), ("stream", "max"), ("task", ""), ("task", "cache"), ("close", "")],
)
def test_who_leaves_cancels_the_call(way: str, around: str, tmp_path: Path) -> None:
    scorer = Hangs()
    wrapped: Scorer | AsyncScorer = scorer
    if around == "max":
        wrapped = MaxScorer([load_scorer(scorer), load_scorer(scorer)])
    elif around == "cache":
        wrapped = CachedScorer(load_scorer(scorer), tmp_path / "scores.sqlite3")
    engine = scripted_engine()

    async def leave() -> None:
        async with AsyncDetoxifier(engine, scorer=wrapped) as detox:
            task = asyncio.create_task(detox(PROMPTS[0]))
            assert await asyncio.to_thread(scorer.reached.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(scorer.cancelled.wait, 2)

    if way == "task":
        asyncio.run(leave())
    else:
        with Detoxifier(engine, scorer=wrapped) as detox:
            if way == "deadline":
                with pytest.raises(DeadlineError):
                    detox(PROMPTS[0], deadline=0.3)
            else:
                stream = detox.stream(PROMPTS[0])
                assert scorer.reached.wait(20)
                (stream if way == "stream" else detox).close()
            assert scorer.cancelled.wait(10)
    engine.close()


def perspective(url: str) -> PerspectiveScorer:
    return PerspectiveScorer(key="a-key", url=url, queries_per_second=5000, attempts=1)


def test_a_service_is_asked_by_one_client_for_life() -> None:
    with running(Perspective) as service:
        scorer = perspective(service.url)
        for number in range(20):
            scorer.score([f"text {number}"])
        assert len(service.requests) == 20
        assert service.connections == 1
        threads = [thread.name for thread in threading.enumerate()]
        assert threads.count("tide PerspectiveScorer") == 1
        scorer.close()
        assert "tide PerspectiveScorer" not in [thread.name for thread in threading.enumerate()]
        with pytest.raises(ScorerError, match="the scorer is closed"):
            scorer.score(["a text"])
