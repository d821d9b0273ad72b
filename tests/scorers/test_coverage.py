from __future__ import annotations

import numpy as np
import pytest

from tide.core.errors import ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.scorers import CallableScorer
from tide.scorers.assessment import score_covered

TEXTS = [f"text {i}" for i in range(600)]


def test_all_texts() -> None:
    done: list[int] = []
    found = score_covered(CallableScorer(lambda texts: [0.25] * len(texts)), TEXTS, done.append)
    assert found.share == 1.0
    assert found.failure is None
    assert found.values.tolist() == [0.25] * 600
    assert sum(done) == 600
    assert score_covered(CallableScorer(lambda texts: []), []).share == 0.0


def test_texts_that_a_scorer_cannot_take_have_no_score() -> None:
    def score(texts: list[str]) -> list[float]:
        if any(text.endswith("7") for text in texts):
            raise ScorerError("no sevens")
        return [0.5] * len(texts)

    found = score_covered(CallableScorer(score), TEXTS)
    assert found.share == pytest.approx(0.9)
    assert found.failure == "no sevens"
    assert np.isnan(found.values[7::10]).all()
    assert (found.values[found.known] == 0.5).all()


@pytest.mark.parametrize(
    "error", [ScorerUnavailableError("gone"), ScorerRefusedError("no key"), ScorerError("broken")]
)
def test_a_scorer_that_stops_keeps_what_it_had_scored(error: ScorerError) -> None:
    asked = []

    def score(texts: list[str]) -> list[float]:
        asked.append(len(texts))
        if len(asked) > 1:
            raise error
        return [0.5] * len(texts)

    found = score_covered(CallableScorer(score), TEXTS)
    assert found.share == pytest.approx(256 / 600)
    assert found.failure is not None
    assert len(asked) <= 3  # once more for a text of our own, to see whether it is broken
