from __future__ import annotations

from typing import Any

import pytest

from tests.scorers.services.stand_ins import Clock
from tests.scorers.wrappers.stand_ins import Moody
from tide.core.errors import ScorerError, ScorerUnavailableError
from tide.scorers import CallableScorer
from tide.scorers.wrappers.breaker import CircuitBreaker


def test_breaker_opens_and_closes_again() -> None:
    moody, clock = Moody(*[TimeoutError("late")] * 4), Clock()
    scorer = CircuitBreaker(CallableScorer(moody), 3, cooldown=30, clock=clock)

    def attempt() -> Any:
        return scorer.score(["a text"])

    for _ in range(3):
        with pytest.raises(ScorerUnavailableError, match="late"):
            attempt()
    with pytest.raises(ScorerUnavailableError, match="3 times in a row; not asked again for 30 s"):
        attempt()
    assert moody.calls == 3
    clock.sleep(31)
    with pytest.raises(ScorerUnavailableError, match="late"):
        attempt()
    with pytest.raises(ScorerUnavailableError, match="4 times"):  # one failure opens it again
        attempt()
    assert moody.calls == 4
    clock.sleep(31)
    assert attempt() == [0.25]
    moody.plan = [TimeoutError("late")] * 2
    for _ in range(2):
        with pytest.raises(ScorerUnavailableError, match="late"):
            attempt()
    assert attempt() == [0.25]  # closed: two failures are fewer than three


def test_a_refused_text_does_not_open_it() -> None:
    moody = Moody(*[ScorerError("too long")] * 5)
    scorer = CircuitBreaker(CallableScorer(moody), 2)
    for _ in range(5):
        with pytest.raises(ScorerError, match="too long"):
            scorer.score(["a text"])
    assert scorer.score(["a text"]) == [0.25]
