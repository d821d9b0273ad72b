"""Texts of many coroutines: few scorer calls at a time, equal texts once, errors for each text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

from tide.core.concurrency import Portal, portal_of
from tide.core.errors import (
    ScorerBrokenError,
    ScorerError,
    ScorerRefusedError,
    ScorerUnavailableError,
)
from tide.scorers import AsyncScorer, load_scorer
from tide.scorers.base import Exchange, Scores
from tide.scorers.scoring import Scoring
from tide.scorers.wrappers import MaxScorer

_T = TypeVar("_T")


@pytest.fixture
def portal() -> Iterator[Portal]:
    loop = Portal("test")
    yield loop
    loop.close()


class Lengths:
    """The score of a text is its length in hundredths. batches: the texts of each call."""

    name, threshold = "lengths", 0.5

    screen: Lengths | None = None

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        self.busy = threading.Lock()

    def score(self, texts: Sequence[str]) -> Any:
        assert self.busy.acquire(blocking=False)  # one call at a time
        try:
            self.batches.append(list(texts))
            assert self.go.wait(20)
            return [len(text) / 100 for text in texts]
        finally:
            self.busy.release()

    def close(self) -> None: ...


def send(scoring: Scoring, texts: Sequence[str], **options: Any) -> asyncio.Future[Scores]:
    return scoring.send([Exchange("", text) for text in texts], **options)


def run(portal: Portal, scorer: Any, work: Callable[[Scoring], Awaitable[_T]]) -> _T:
    async def inside() -> _T:
        return await work(Scoring(scorer))

    return portal.run(inside)


def failures(portal: Portal, scorer: Any, *texts: str) -> list[Any]:
    """The scores or the error of each text, sent together."""

    async def work(scoring: Scoring) -> list[Any]:
        asked = [send(scoring, [text]) for text in texts]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)

    return run(portal, scorer, work)


async def reached(scorer: Lengths) -> None:
    while not scorer.batches:
        await asyncio.sleep(0.005)


def values(scores: Scores) -> list[float]:
    return [round(value, 9) for value in scores.values.tolist()]


def test_who_asks_in_one_breath_is_sent_together_and_equal_texts_once(portal: Portal) -> None:
    scorer = Lengths()

    async def work(scoring: Scoring) -> list[Scores]:
        return await asyncio.gather(
            send(scoring, ["four", "three"]),
            send(scoring, ["befour"]),
            send(scoring, ["three", "befour"]),
        )

    scores = run(portal, scorer, work)
    assert list(map(values, scores)) == [[0.04, 0.05], [0.06], [0.05, 0.06]]
    (sent,) = scorer.batches
    assert sorted(sent) == ["befour", "four", "three"]


def test_the_screen_is_asked_alone_where_that_is_enough(portal: Portal) -> None:
    scorer, screen = Lengths(), Lengths()
    scorer.screen = screen

    async def work(scoring: Scoring) -> list[Scores]:
        return await asyncio.gather(
            send(scoring, ["four"], screened=True), send(scoring, ["three"])
        )

    assert list(map(values, run(portal, scorer, work))) == [[0.04], [0.05]]
    assert (screen.batches, scorer.batches) == ([["four"]], [["three"]])


class Quick(Lengths):
    """threads: the thread of each call."""

    quick = True

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def score(self, texts: Sequence[str]) -> Any:
        self.threads.append(threading.current_thread())
        return super().score(texts)


def test_a_quick_scorer_answers_in_the_loop_unless_a_text_is_long(portal: Portal) -> None:
    scorer = Quick()

    async def work(scoring: Scoring) -> list[bool]:
        sent = [send(scoring, [text]) for text in ("four", "three", "x" * 90)]
        sent.append(send(scoring, ["x" * 50] * 40 + ["yes"]))
        await asyncio.gather(*sent)
        return [thread is threading.current_thread() for thread in scorer.threads]

    assert run(portal, scorer, work) == [True, False]
    assert scorer.batches == [["four", "three", "x" * 90], ["x" * 50, "yes"]]


def test_a_quick_screen_does_not_wait_for_a_slow_call(portal: Portal) -> None:
    scorer = Lengths()
    scorer.screen = Quick()
    scorer.go.clear()

    async def work(scoring: Scoring) -> list[Scores]:
        slow = [send(scoring, ["four"])]
        await reached(scorer)
        slow.append(send(scoring, ["six"]))
        quick = await asyncio.wait_for(send(scoring, ["three"], screened=True), 10)
        assert not any(future.done() for future in slow)
        scorer.go.set()
        return [quick, *await asyncio.gather(*slow)]

    assert list(map(values, run(portal, scorer, work))) == [[0.05], [0.04], [0.03]]


def test_a_quick_scorer_that_fails_fails_its_request_alone(portal: Portal) -> None:
    class Choosy(Quick):
        def score(self, texts: Sequence[str]) -> Any:
            if "bad" in texts:
                raise SystemExit("bad")
            return super().score(texts)

    results = failures(portal, Choosy(), "four", "bad", "three")
    assert list(map(values, (results[0], results[2]))) == [[0.04], [0.05]]
    assert isinstance(results[1], ScorerError)


def test_texts_gather_while_a_call_is_under_way_and_what_was_cancelled_is_not_sent(
    portal: Portal,
) -> None:
    scorer = Lengths()
    scorer.go.clear()

    async def work(scoring: Scoring) -> list[list[float]]:
        first = send(scoring, ["aaaa"])
        await reached(scorer)
        later = []
        for word in ("bbbbb", "cccccc", "ddddddd"):
            later.append(send(scoring, [word]))
            await asyncio.sleep(0.01)
        later[1].cancel()
        await asyncio.sleep(0.02)
        assert scorer.batches == [["aaaa"]]
        scorer.go.set()
        return [values(await future) for future in (first, later[0], later[2])]

    assert run(portal, scorer, work) == [[0.04], [0.05], [0.07]]
    assert scorer.batches == [["aaaa"], ["bbbbb", "ddddddd"]]


class Failing(Lengths):
    """Fails for texts that begin with `bad`; after a text `dead` it always fails."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error, self._dead = error, False

    def score(self, texts: Sequence[str]) -> Any:
        self._dead = self._dead or "dead" in texts
        if self._dead or any(text.startswith("bad") for text in texts):
            raise self._error
        return super().score(texts)


ERRORS: list[BaseException] = [
    ValueError("cannot read this"),
    KeyboardInterrupt("cannot read this"),
    asyncio.CancelledError("cannot read this"),
    type("PanicException", (BaseException,), {})("cannot read this"),
]


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
        return [len(text) / 100 for text in texts]


@pytest.mark.parametrize("spec", ["alone", "max"])
def test_a_slow_text_of_an_asynchronous_scorer_delays_no_other(portal: Portal, spec: str) -> None:
    waits = Waits()
    scorers: dict[str, Any] = {
        "alone": lambda: waits,
        "max": lambda: MaxScorer([load_scorer("pocket"), waits]),  # type: ignore[list-item]
    }

    async def work(scoring: Scoring) -> None:
        slow = send(scoring, ["slow"])
        await asyncio.sleep(0.05)
        for number in range(20):  # with the slow text waiting
            await asyncio.wait_for(send(scoring, [f"text {number}"]), 10)
        assert not slow.done()
        portal_of(waits)._soon(waits.go.set)
        await asyncio.wait_for(slow, 10)

    run(portal, scorers[spec](), work)


def test_at_most_eight_calls_of_an_asynchronous_scorer_run_at_once(portal: Portal) -> None:
    waits = Waits()

    async def work(scoring: Scoring) -> None:
        asked = []
        for number in range(20):
            asked.append(send(scoring, [f"text {number}", "slow"]))
            await asyncio.sleep(0.01)
        portal_of(waits)._soon(waits.go.set)
        await asyncio.wait_for(asyncio.gather(*asked), 10)
        assert waits.most == 8

    run(portal, waits, work)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_text_that_the_scorer_cannot_take_fails_alone(
    portal: Portal, error: BaseException
) -> None:
    """Holds for any exception; the next call is not affected."""
    scorer = Failing(error)
    good, bad, better = failures(portal, scorer, "good", "bad one", "better")
    (again,) = failures(portal, scorer, "again")
    assert values(good) + values(better) + values(again) == [0.04, 0.06, 0.05]
    assert isinstance(bad, ScorerError)
    assert "cannot read this" in str(bad)
    assert len(str(bad).splitlines()) == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_scorer_that_fails_for_all_is_broken(portal: Portal, error: BaseException) -> None:
    results = failures(portal, Failing(error), "good", "dead", "better")
    assert {type(result) for result in results} <= {ScorerBrokenError, ScorerError}
    assert ScorerBrokenError in map(type, results)


@pytest.mark.parametrize("error", [ScorerUnavailableError("down"), ScorerRefusedError("no key")])
def test_a_scorer_that_is_away_is_the_error_of_all(portal: Portal, error: ScorerError) -> None:
    assert failures(portal, Failing(error), "good", "bad") == [error, error]


def test_thread_of_a_call_that_hangs_keeps_no_program_running(portal: Portal) -> None:
    scorer = Lengths()
    scorer.go.clear()

    async def work(scoring: Scoring) -> list[threading.Thread]:
        send(scoring, ["aaaa"])
        await reached(scorer)
        return [thread for thread in threading.enumerate() if thread.name == "tide scorer"]

    threads = run(portal, scorer, work)
    assert all(thread.daemon for thread in threads)
    scorer.go.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_call_whose_thread_cannot_start_fails_and_the_next_one_runs(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[bool] = []
    start = threading.Thread.start

    def sometimes(thread: threading.Thread) -> None:
        if thread.name == "tide scorer":
            starts.append(True)
            if len(starts) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    async def work(scoring: Scoring) -> list[Any]:
        monkeypatch.setattr(threading.Thread, "start", sometimes)
        results = []
        for text in ("a", "aa", "aaa"):
            request = send(scoring, [text])
            results += await asyncio.wait_for(asyncio.gather(request, return_exceptions=True), 10)
        return results

    first, second, third = run(portal, Lengths(), work)
    assert isinstance(second, ScorerUnavailableError)
    assert "can't start new thread" in str(second)
    assert len(first.values) == len(third.values) == 1
