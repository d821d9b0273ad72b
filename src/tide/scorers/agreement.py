"""How well a scorer agrees with labels or with another scorer's recorded scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tide.core.optional import require
from tide.data.files import replaced
from tide.scorers.base import Floats

BINS = 10


@dataclass(frozen=True)
class Agreement:
    """Scores against targets, both in [0, 1]; a target of at least 0.5 counts as toxic.

    auc: NaN where only one class occurs. correlation: Pearson's, NaN where either is constant.
    calibration_error: mean distance between score and target over 10 equally wide bins of the
    score, weighted by their texts (Naeini et al., 2015). bins: per bin that is not empty its mean
    score, mean target and number of texts, shape (at most 10, 3).
    """

    texts: int
    toxic: float
    auc: float
    accuracy: float
    correlation: float
    calibration_error: float
    bins: Floats


def agreement(scores: Floats, targets: Floats) -> Agreement:
    """Agreement of scores with targets, both of shape (n,), n > 0."""
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415  (slow import)

    toxic = targets >= 0.5
    one_class = toxic.all() or not toxic.any()
    number = np.minimum((scores * BINS).astype(int), BINS - 1)
    bins = np.array([
        (scores[here].mean(), targets[here].mean(), here.sum())
        for here in (number == n for n in range(BINS))
        if here.any()
    ])  # fmt: skip
    return Agreement(
        texts=len(scores),
        toxic=float(toxic.mean()),
        auc=math.nan if one_class else float(roc_auc_score(toxic, scores)),
        accuracy=float(((scores >= 0.5) == toxic).mean()),
        correlation=_correlation(scores, targets),
        calibration_error=float((np.abs(bins[:, 0] - bins[:, 1]) * bins[:, 2]).sum() / len(scores)),
        bins=bins,
    )


def error_correlations(
    scores: Mapping[str, Floats], targets: Floats
) -> dict[str, dict[str, float]]:
    """Pearson's correlation of the errors (score - target) of every two scorers.

    scores: by scorer, shape (n,) as the targets; NaN where it has none, and both must have one. A
    judge with the same errors as the search's scorer only repeats it. NaN where fewer than two
    texts are left, or one of them makes the same error everywhere.
    """
    return {
        one: {
            other: _correlation(scores[one] - targets, scores[other] - targets) for other in scores
        }
        for one in scores
    }


def _correlation(first: Floats, second: Floats) -> float:
    both = ~(np.isnan(first) | np.isnan(second))
    first, second = first[both], second[both]
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def plot_calibration(by_scorer: dict[str, Agreement], path: Path) -> None:
    """Plots the mean target of each bin by its mean score and, below, the number of its texts."""
    figure = require("matplotlib.figure", extra="report").Figure(
        figsize=(6.4, 6.8), layout="constrained"
    )
    above, below = figure.subplots(2, height_ratios=(3, 1), sharex=True)
    above.plot((0, 1), (0, 1), color="0.7", linestyle="--", label="perfect")
    for name, found in by_scorer.items():
        scores, targets, counts = found.bins.T
        label = f"{name} (error {found.calibration_error:.3f})"
        (line,) = above.plot(scores, targets, marker="o", markersize=4, label=label)
        below.plot(scores, counts / found.texts, marker="o", markersize=3, color=line.get_color())
    above.set(ylabel="mean label of the texts", ylim=(0, 1))
    figure.legend(loc="outside upper left", fontsize="small")
    below.set(xlabel="score", ylabel="share of texts", xlim=(0, 1), ylim=(0, None))
    for axes in (above, below):
        axes.grid(alpha=0.3)
    with replaced(path) as file:
        figure.savefig(file, format=path.suffix[1:] or None, dpi=120)
