from __future__ import annotations

from typing import Any

import pytest

from tests.scorers.services.stand_ins import Clock
from tide.errors import InputError, ScorerError, ScorerRefused, ScorerUnavailable
from tide.scorers import CallableScorer, load_scorer
from tide.scorers.wrappers.guards import CircuitBreaker, RateLimitedScorer, RetryScorer


class Moody:
    """Raises what the plan says, call by call; then scores 0.25."""

    def __init__(self, *plan: Exception) -> None:
        self.plan = list(plan)
        self.calls = 0

    def __call__(self, texts: list[str]) -> list[float]:
        self.calls += 1
        if self.plan:
            raise self.plan.pop(0)
        return [0.25] * len(texts)


def test_rate() -> None:
    clock = Clock()
    batches: list[tuple[float, int]] = []

    def spy(texts: list[str]) -> list[float]:
        batches.append((clock.now, len(texts)))
        return [len(text) / 10 for text in texts]

    scorer = RateLimitedScorer(CallableScorer(spy), 2, clock=clock, sleep=clock.sleep)
    assert scorer.score(["a", "bb", "ccc", "dd", "e"]) == pytest.approx([0.1, 0.2, 0.3, 0.2, 0.1])
    scorer.score(["a", "b"])
    clock.sleep(10)
    scorer.score(["a"])
    assert batches == [(100.0, 2), (101.0, 2), (102.0, 1), (102.5, 2), (112.5, 1)]
    slow = RateLimitedScorer(CallableScorer(spy), 0.5, clock=clock, sleep=clock.sleep)
    batches.clear()
    slow.score(["a", "b"])
    assert [when - batches[0][0] for when, _ in batches] == [0.0, 2.0]


@pytest.mark.parametrize(
    ("errors", "calls"), [([], 1), ([TimeoutError("late")], 2), ([ConnectionError()] * 2, 3)]
)
def test_retry_outlasts_an_outage(errors: list[Exception], calls: int) -> None:
    moody, clock = Moody(*errors), Clock()
    scorer = RetryScorer(CallableScorer(moody), 3, sleep=clock.sleep)
    assert scorer.score(["a text"]) == [0.25]
    assert moody.calls == calls


@pytest.mark.parametrize(
    ("error", "raised", "calls"),
    [
        (TimeoutError("late"), ScorerUnavailable, 3),
        (ScorerUnavailable("down"), ScorerUnavailable, 3),
        (ScorerRefused("retired"), ScorerRefused, 1),
        (ValueError("wrong"), ScorerError, 1),
        (ScorerError("too long"), ScorerError, 1),
    ],
)
def test_retry_gives_up(error: Exception, raised: type[ScorerError], calls: int) -> None:
    moody = Moody(*[error] * 10)
    with pytest.raises(ScorerError) as caught:
        RetryScorer(CallableScorer(moody), 3, sleep=lambda seconds: None).score(["a text"])
    assert type(caught.value) is raised
    assert moody.calls == calls


def test_breaker_opens_and_closes_again() -> None:
    moody, clock = Moody(*[TimeoutError("late")] * 4), Clock()
    scorer = CircuitBreaker(CallableScorer(moody), 3, cooldown=30, clock=clock)

    def attempt() -> Any:
        return scorer.score(["a text"])

    for _ in range(3):
        with pytest.raises(ScorerUnavailable, match="late"):
            attempt()
    with pytest.raises(ScorerUnavailable, match="3 times in a row; not asked again for 30 seconds"):
        attempt()
    assert moody.calls == 3
    clock.sleep(31)
    with pytest.raises(ScorerUnavailable, match="late"):
        attempt()
    with pytest.raises(ScorerUnavailable, match="4 times"):  # one failure opens it again
        attempt()
    assert moody.calls == 4
    clock.sleep(31)
    assert attempt() == [0.25]
    moody.plan = [TimeoutError("late")] * 2
    for _ in range(2):
        with pytest.raises(ScorerUnavailable, match="late"):
            attempt()
    assert attempt() == [0.25]  # closed: two failures are fewer than three


def test_a_refused_text_does_not_open_it() -> None:
    moody = Moody(*[ScorerError("too long")] * 5)
    scorer = CircuitBreaker(CallableScorer(moody), 2)
    for _ in range(5):
        with pytest.raises(ScorerError, match="too long"):
            scorer.score(["a text"])
    assert scorer.score(["a text"]) == [0.25]


def test_by_name() -> None:
    pocket = load_scorer("pocket")
    for spec in ("rate:1000:pocket", "retry:pocket", "retry:2:pocket", "breaker:2:retry:pocket"):
        scorer = load_scorer(spec)
        assert scorer.name == pocket.name
        assert scorer.score(["a text"]) == pocket.score(["a text"])
        scorer.close()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rate:pocket", "write rate:NUMBER:SCORER"),
        ("rate:0:pocket", "rate: expected a number above 0"),
        ("retry:0.5:pocket", "retry: expected a whole number above 0"),
        ("breaker", "write breaker:SCORER or breaker:NUMBER:SCORER"),
        ("windows:1:pocket", "windows: expected a whole number above 1"),
        ("cache:5:pocket", "unknown scorer '5'"),
        ("max:pocket", "max: needs two or more, as in max:A,B"),
        ("mean:pocket,pockt", "did you mean 'pocket'"),
        ("chache:pocket", "did you mean 'cache'"),
    ],
)
def test_names_that_cannot_be_read(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scorer(spec)
