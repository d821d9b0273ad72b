from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tide.scorers.assessment import agreement, error_correlations, plot_calibration


def test_by_hand() -> None:
    scores, targets = np.array([0.1, 0.45, 0.45, 0.9]), np.array([0.0, 1.0, 0.2, 0.7])
    found = agreement(scores, targets)
    assert (found.texts, found.toxic, found.accuracy) == (4, 0.5, 0.75)
    assert found.auc == pytest.approx((1 + 0.5 + 1 + 1) / 4)  # pairs in order, a tie counts half
    assert found.correlation == pytest.approx(np.corrcoef(scores, targets)[0, 1])
    # bins: 0.1 -> 0.0, {0.45, 0.45} -> 0.6, 0.9 -> 0.7
    assert found.calibration_error == pytest.approx((0.1 + 2 * 0.15 + 0.2) / 4)
    np.testing.assert_allclose(found.bins, [[0.1, 0, 1], [0.45, 0.6, 2], [0.9, 0.7, 1]])


def test_perfect_and_constant() -> None:
    values = np.array([0.0, 0.3, 0.6, 1.0])
    perfect = agreement(values, values)
    assert (perfect.auc, perfect.accuracy, perfect.calibration_error) == (1, 1, 0)
    assert perfect.correlation == pytest.approx(1)
    constant = agreement(values, np.full(4, 0.2))
    assert math.isnan(constant.auc)
    assert math.isnan(constant.correlation)
    assert constant.accuracy == 0.5


def test_calibration_error_is_small_for_calibrated_scores() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(20_000)
    labels = (rng.random(20_000) < scores).astype(float)
    assert agreement(scores, labels).calibration_error < 0.02
    assert agreement(scores**3, labels).calibration_error > 0.1


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scores = np.linspace(0, 1, 50)
    plot_calibration({"a scorer": agreement(scores, scores**2)}, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    assert "a scorer (error 0.1" in drawn


def test_correlation_of_errors() -> None:
    rng = np.random.default_rng(0)
    targets, error, other = rng.random((3, 2000))
    scores = {
        "a": targets + error, "the same error": targets + error + 0.25,
        "the opposite": targets - error, "another": targets + other, "perfect": targets,
    }  # fmt: skip
    found = error_correlations(scores, targets)
    assert found["a"]["the same error"] == pytest.approx(1.0)
    assert found["a"]["the opposite"] == pytest.approx(-1.0)
    assert abs(found["a"]["another"]) < 0.1
    assert np.isnan(found["a"]["perfect"])
    scores["another"][:1998] = np.nan  # two are left, of which a line can be made
    assert abs(error_correlations(scores, targets)["a"]["another"]) == pytest.approx(1.0)
