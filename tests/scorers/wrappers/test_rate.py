from __future__ import annotations

import pytest

from tests.scorers.services.stand_ins import Clock
from tide.scorers import CallableScorer
from tide.scorers.wrappers.rate import RateLimitedScorer


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
