"""Texts of many coroutines: few scorer calls at a time, equal texts once, errors for each text.

All calls of an asynchronous scorer run in one loop, and are cancelled when nobody waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.fakes import FakeScorer, HeldScorer, hundredths
from tests.runtime.world import PROMPT, SETTINGS, WORDS, Reader, Storyteller, never, third
from tests.worlds import PROMPTS, scripted_engine
from tide.core.concurrency import portal_of
from tide.core.errors import (
    DeadlineError,
    ScorerBrokenError,
    ScorerError,
    ScorerRefusedError,
    ScorerUnavailableError,
)
from tide.detoxifier.asynchronous import AsyncDetoxifier
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Request
from tide.scorers import load_scorer
from tide.scorers.base import AsyncScorer, Exchange, Scorer, TextScore
from tide.scorers.scoring import Scoring
from tide.scorers.wrappers import CachedScorer, ConfirmScorer, MaxScorer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def held() -> Iterator[HeldScorer]:
    """A scorer whose calls wait."""
    scorer = HeldScorer(holds=lambda text: True, score=hundredths)
    yield scorer
    scorer.go.set()


def send(scoring: Scoring, *texts: str, **options: Any) -> asyncio.Future[Sequence[TextScore]]:
    return scoring.send([Exchange("", text) for text in texts], **options)


def values(answer: Sequence[TextScore] | ScorerError) -> list[float] | ScorerError:
    if isinstance(answer, ScorerError):
        return answer
    return [round(score.value, 9) for score in answer]


async def answers(*requests: asyncio.Future[Sequence[TextScore]]) -> list[Any]:
    """The scores or the error of each request."""
    waiting = asyncio.gather(*requests, return_exceptions=True)
    return list(map(values, await asyncio.wait_for(waiting, 10)))  # type: ignore[arg-type]


async def test_who_asks_in_one_breath_is_sent_together_and_equal_texts_once() -> None:
    scorer = FakeScorer(hundredths)
    scoring = Scoring(scorer)
    requests = [["four", "three"], ["befour"], ["three", "befour"]]
    scores = await answers(*(send(scoring, *texts) for texts in requests))
    assert scores == [[0.04, 0.05], [0.06], [0.05, 0.06]]
    (sent,) = scorer.calls
    assert sorted(sent) == ["befour", "four", "three"]


async def test_the_screen_is_asked_alone_where_that_is_enough() -> None:
    screen = FakeScorer(hundredths)
    scorer = FakeScorer(hundredths, screen=screen)
    scoring = Scoring(scorer)
    scores = await answers(send(scoring, "four", screened=True), send(scoring, "three"))
    assert scores == [[0.04], [0.05]]
    assert (screen.calls, scorer.calls) == ([["four"]], [["three"]])


@pytest.mark.parametrize(
    ("long", "growing"),
    [
        pytest.param(["x" * 50] * 40 + ["yes"], False, id="together"),
        pytest.param(["x" * 50] * 160 + ["yes"], True, id="windows together"),
        pytest.param(["x" * 2001, "yes"], True, id="one window"),
    ],
)
async def test_a_quick_scorer_answers_in_the_loop_unless_texts_are_long(
    long: list[str], growing: bool
) -> None:
    threads = []

    def length(text: str) -> float:
        threads.append(threading.current_thread())
        return min(1.0, hundredths(text))

    scorer = FakeScorer(length, quick=True)
    scoring = Scoring(scorer)
    short = [send(scoring, text) for text in ("four", "three")]
    windows = send(scoring, *["x" * 90] * 40, growing=True)
    await answers(*short, windows, send(scoring, *long, growing=growing))
    assert scorer.calls == [["four", "three", "x" * 90], [long[0], "yes"]]
    in_loop = [thread is threading.current_thread() for thread in threads]
    assert in_loop == [True] * 3 + [False] * 2


async def test_a_quick_screen_does_not_wait_for_a_slow_call(held: HeldScorer) -> None:
    held.screen = FakeScorer(hundredths, quick=True)  # type: ignore[attr-defined]
    scoring = Scoring(held)
    slow = [send(scoring, "four")]
    await asyncio.to_thread(held.entered.wait, 20)
    slow.append(send(scoring, "six"))
    assert await answers(send(scoring, "three", screened=True)) == [[0.05]]
    assert not any(future.done() for future in slow)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "tide scorer")
    held.go.set()
    assert await answers(*slow) == [[0.04], [0.03]]


async def test_texts_gather_during_a_call_and_cancelled_ones_are_not_sent(
    held: HeldScorer,
) -> None:
    scoring = Scoring(held)
    requests = [send(scoring, "aaaa")]
    await asyncio.to_thread(held.entered.wait, 20)
    for word in ("bbbbb", "cccccc", "ddddddd"):
        requests.append(send(scoring, word))
        await asyncio.sleep(0.01)
    requests.pop(2).cancel()
    await asyncio.sleep(0.02)
    assert held.calls == [["aaaa"]]
    held.go.set()
    assert await answers(*requests) == [[0.04], [0.05], [0.07]]
    assert held.calls == [["aaaa"], ["bbbbb", "ddddddd"]]


class Waits(AsyncScorer):
    """Waits for `go` while it scores the text "slow"; `most` is the most calls at once."""

    name, threshold = "waits@1", 0.5

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = self.most = 0

    async def score(self, texts: Sequence[str]) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        await (self.go.wait() if "slow" in texts else asyncio.sleep(0.01))
        self.running -= 1
        return list(map(hundredths, texts))

    def release(self) -> None:
        portal_of(self)._soon(self.go.set)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["alone", "in an ensemble"])
async def test_a_slow_text_of_an_asynchronous_scorer_delays_no_other(kind: str) -> None:
    waits: Any = Waits()
    scoring = Scoring(waits if kind == "alone" else MaxScorer([load_scorer("pocket"), waits]))
    slow = send(scoring, "slow")
    await asyncio.sleep(0.05)
    for number in range(20):  # with the slow text waiting
        await asyncio.wait_for(send(scoring, f"text {number}"), 10)
    assert not slow.done()
    waits.release()
    await asyncio.wait_for(slow, 10)


async def test_at_most_eight_calls_of_an_asynchronous_scorer_run_at_once() -> None:
    waits: Any = Waits()
    scoring = Scoring(waits)
    asked = []
    for number in range(20):
        asked.append(send(scoring, f"text {number}", "slow"))
        await asyncio.sleep(0.01)
    waits.release()
    await answers(*asked)
    assert waits.most == 8


def failing(error: BaseException, **members: Any) -> FakeScorer:
    """A scorer that fails for texts that begin with `bad`, and for all from a text `dead` on."""

    def score(text: str) -> float:
        if text.startswith("bad") or "dead" in scorer.texts:
            raise error
        return hundredths(text)

    scorer = FakeScorer(score, **members)
    return scorer


ERRORS: list[BaseException] = [
    ValueError("cannot read this"),
    KeyboardInterrupt("cannot read this"),
    asyncio.CancelledError("cannot read this"),
    type("PanicException", (BaseException,), {})("cannot read this"),
]


@pytest.mark.parametrize(
    ("error", "quick"),
    [*((error, False) for error in ERRORS), (SystemExit("cannot read this"), True)],
)
async def test_a_text_that_the_scorer_cannot_take_fails_alone(
    error: BaseException, quick: bool
) -> None:
    scoring = Scoring(failing(error, quick=quick))
    sent = [send(scoring, text) for text in ("good", "bad one", "better")]
    good, bad, better = await answers(*sent)
    assert (good, better, *await answers(send(scoring, "again"))) == ([0.04], [0.06], [0.05])
    assert isinstance(bad, ScorerError)
    assert "cannot read this" in str(bad)
    assert len(str(bad).splitlines()) == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_scorer_that_fails_for_all_is_broken(error: BaseException) -> None:
    scoring = Scoring(failing(error))
    results = await answers(*(send(scoring, text) for text in ("good", "dead", "better")))
    assert {type(result) for result in results} <= {ScorerBrokenError, ScorerError}
    assert ScorerBrokenError in map(type, results)


@pytest.mark.parametrize("error", [ScorerUnavailableError("down"), ScorerRefusedError("no key")])
async def test_a_scorer_that_is_away_is_the_error_of_all(error: ScorerError) -> None:
    scoring = Scoring(failing(error))
    assert await answers(send(scoring, "good"), send(scoring, "bad")) == [error, error]


async def test_call_whose_thread_cannot_start_fails_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts: list[bool] = []
    start = threading.Thread.start

    def sometimes(thread: threading.Thread) -> None:
        if thread.name == "tide scorer":
            starts.append(True)
            if len(starts) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sometimes)
    scoring = Scoring(FakeScorer(hundredths))
    first, second, third = [(await answers(send(scoring, text)))[0] for text in ("a", "aa", "aaa")]
    assert isinstance(second, ScorerUnavailableError)
    assert "can't start new thread" in str(second)
    assert (first, third) == ([0.01], [0.03])


# Asynchronous scorers


class Hangs(AsyncScorer):
    """Never returns. reached, cancelled: set when a call starts, and when it is cancelled."""

    name, threshold = "hangs@1", 0.5

    def __init__(self) -> None:
        self.reached, self.cancelled = threading.Event(), threading.Event()

    async def score(self, texts: Sequence[str]) -> Any:
        self.reached.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize(
    "around", [load_scorer, lambda scorer: MaxScorer([scorer, scorer]), CachedScorer]
)
async def test_task_that_is_cancelled_cancels_the_call(around: Callable[[Any], Scorer]) -> None:
    scorer = Hangs()
    with scripted_engine() as engine:
        async with AsyncDetoxifier(engine, scorer=around(scorer)) as detox:
            task = asyncio.create_task(detox(PROMPTS[0]))
            assert await asyncio.to_thread(scorer.reached.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(scorer.cancelled.wait, 2)


@pytest.mark.parametrize("end", ["deadline", "stream", "detoxifier"])
def test_deadline_or_close_cancels_the_call(end: str) -> None:
    scorer = Hangs()
    with scripted_engine() as engine, Detoxifier(engine, scorer=scorer) as detox:
        if end == "deadline":
            with pytest.raises(DeadlineError):
                detox(PROMPTS[0], deadline=0.3)
        else:
            stream = detox.stream(PROMPTS[0])
            assert scorer.reached.wait(20)
            (stream if end == "stream" else detox).close()
        assert scorer.cancelled.wait(10)


class Pausing(Storyteller):
    """After each piece the event loop may call the scorer. hangs: it writes no second sentence."""

    hangs = False

    async def _pause(self, request: Request, written: int) -> None:
        await asyncio.sleep(3600 if self.hangs and written > WORDS + 2 else 0)


@pytest.mark.parametrize("screened", [False, True])
def test_leaving_while_the_model_writes_cancels_the_call(screened: bool) -> None:
    """The trial does not await the score yet."""
    scorer, engine = Hangs(), Pausing(never)
    engine.hangs = True
    used: Any = ConfirmScorer([Reader(quick=True), scorer]) if screened else scorer
    strategy = f"backtrack:pace={'word' if screened else 'sentence'}"
    with Detoxifier(engine, scorer=used, **{**SETTINGS, "strategy": strategy}) as detox:
        with detox.stream(PROMPT):
            assert scorer.reached.wait(20)
        assert scorer.cancelled.wait(10)


def test_rewind_cancels_the_call_for_the_text_after_it() -> None:
    class HangsAfterTheFailure(Hangs):
        async def score(self, texts: Sequence[str]) -> Any:
            if any("Bad2 " in text and "Good3" in text for text in texts):
                return await super().score(texts)
            fails = any("Bad2 " in text for text in texts)
            if fails:
                assert await asyncio.to_thread(self.reached.wait, 20)
            return [0.9 if fails else 0.1 for _ in texts]

    scorer = HangsAfterTheFailure()
    with Detoxifier(Pausing(third), scorer=scorer, **SETTINGS) as detox:
        assert detox(PROMPT).accepted
        assert scorer.cancelled.wait(10)
