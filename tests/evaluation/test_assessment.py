"""How good a scorer is: agreement, coverage, false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tide.core.errors import ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.evaluation.assessment import (
    agreement,
    error_correlations,
    score_covered,
)
from tide.scorers import CallableScorer

TEXTS = [f"text {i}" for i in range(600)]


def test_agreement_by_hand() -> None:
    scores, targets = np.array([0.1, 0.45, 0.45, 0.9]), np.array([0.0, 1.0, 0.2, 0.7])
    agreed = agreement(scores, targets)
    assert (agreed.texts, agreed.toxic, agreed.accuracy) == (4, 0.5, 0.75)
    assert agreed.auc == pytest.approx((1 + 0.5 + 1 + 1) / 4)  # ordered pairs; a tie counts half
    assert agreed.correlation == pytest.approx(np.corrcoef(scores, targets)[0, 1])
    # bins: 0.1 -> 0.0, {0.45, 0.45} -> 0.6, 0.9 -> 0.7
    assert agreed.calibration_error == pytest.approx((0.1 + 2 * 0.15 + 0.2) / 4)
    constant = agreement(scores, np.full(4, 0.2))
    assert math.isnan(constant.auc)
    assert math.isnan(constant.correlation)


def test_correlation_of_errors() -> None:
    rng = np.random.default_rng(0)
    targets, error, other = rng.random((3, 2000))
    scores = {
        "a": targets + error, "the same error": targets + error + 0.25,
        "the opposite": targets - error, "another": targets + other, "perfect": targets,
    }  # fmt: skip
    correlations = error_correlations(scores, targets)
    assert correlations["a"]["the same error"] == pytest.approx(1.0)
    assert correlations["a"]["the opposite"] == pytest.approx(-1.0)
    assert abs(correlations["a"]["another"]) < 0.1
    assert np.isnan(correlations["a"]["perfect"])
    scores["another"][:1998] = np.nan  # two texts are left, which always lie on a line
    assert abs(error_correlations(scores, targets)["a"]["another"]) == pytest.approx(1.0)


def test_rejected_texts_have_no_score() -> None:
    def score(texts: list[str]) -> list[float]:
        if any(text.endswith("7") for text in texts):
            raise ScorerError("no sevens")
        return [0.5] * len(texts)

    done: list[int] = []
    found = score_covered(CallableScorer(score), TEXTS, done.append)
    assert (found.share, found.failure, sum(done)) == (pytest.approx(0.9), "no sevens", 600)
    assert np.isnan(found.values[7::10]).all()
    assert (found.values[found.known] == 0.5).all()
    assert score_covered(CallableScorer(score), TEXTS[:7]).failure is None
    assert score_covered(CallableScorer(score), []).share == 0.0


@pytest.mark.parametrize(
    "error", [ScorerUnavailableError("gone"), ScorerRefusedError("no key"), ScorerError("broken")]
)
def test_stopped_scorer_keeps_earlier_scores(error: ScorerError) -> None:
    asked = []

    def score(texts: list[str]) -> list[float]:
        asked.append(len(texts))
        if len(asked) > 1:
            raise error
        return [0.5] * len(texts)

    found = score_covered(CallableScorer(score), TEXTS)
    assert found.share == pytest.approx(256 / 600)
    assert found.failure is not None
    assert len(asked) <= 3  # after a failure HEALTH_TEXT may be scored
