"""Measures a scorer's coverage, and its agreement with labels or another scorer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tide.core.errors import SCORER_DOWN, ScorerBrokenError, ScorerError
from tide.scorers.base import Floats, Scored, Scorer, score_groups

BINS = 10


@dataclass(frozen=True)
class Agreement:
    """Agreement of scores with targets, both in [0, 1]; a target of at least 0.5 is toxic.

    auc: NaN if all targets have the same class. correlation: Pearson's coefficient; NaN if the
    scores or the targets are constant. calibration_error: the expected calibration error (Naeini et
    al., 2015) over 10 score bins of equal width.
    """

    texts: int
    toxic: float
    auc: float
    accuracy: float
    correlation: float
    calibration_error: float


def agreement(scores: Floats, targets: Floats) -> Agreement:
    """Measure the agreement of scores with targets, both of shape (n,), n > 0."""
    import pandas as pd  # noqa: PLC0415  (slow imports)
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415

    toxic = targets >= 0.5
    one_class = toxic.all() or not toxic.any()
    bins = pd.Series(np.minimum((scores * BINS).astype(int), BINS - 1))
    gaps = pd.Series(scores - targets).groupby(bins).sum().abs()
    return Agreement(
        texts=len(scores),
        toxic=float(toxic.mean()),
        auc=math.nan if one_class else float(roc_auc_score(toxic, scores)),
        accuracy=float(((scores >= 0.5) == toxic).mean()),
        correlation=float(pd.Series(scores).corr(pd.Series(targets))),
        calibration_error=float(gaps.sum() / len(scores)),
    )


def error_correlations(
    scores: Mapping[str, Floats], targets: Floats
) -> dict[str, dict[str, float]]:
    """Return Pearson's correlation of the errors (score - target) of each pair of scorers.

    scores: arrays by scorer, shape (n,) like the targets; NaN for a text without a score. A pair is
    compared on the texts that both scorers scored. The correlation is NaN for fewer than two common
    texts or a constant error. A judge that errs like the search's scorer adds no information.
    """
    import pandas as pd  # noqa: PLC0415  (slow import)

    errors = pd.DataFrame({name: values - targets for name, values in scores.items()})
    correlations: dict[str, dict[str, float]] = errors.corr(min_periods=2).to_dict()
    return correlations


_CHUNK = 256


@dataclass(frozen=True)
class Covered:
    """Scores of the texts that a scorer could score.

    values: shape (n,), NaN for a text without a score. seconds: duration of all scoring, failed
    texts included. failure: the error of the first text without a score.
    """

    values: Floats
    seconds: float
    failure: str | None = None

    @property
    def known(self) -> Floats:
        """Mask of the texts with a score, shape (n,), bool."""
        return ~np.isnan(self.values)

    @property
    def share(self) -> float:
        """The share of texts with a score."""
        return float(self.known.mean()) if len(self.values) else 0.0


def score_covered(
    scorer: Scorer, texts: Sequence[Scored], advance: Callable[[int], None] = lambda count: None
) -> Covered:
    """Score as many texts as the scorer can, including nearly empty ones.

    A text that the scorer rejects has no score. Scoring stops when the scorer is unavailable or
    broken; earlier scores are kept. advance: called with the size of each finished chunk.
    """
    values, failure = np.full(len(texts), np.nan), None
    started = time.perf_counter()
    try:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            for i, scores in enumerate(score_groups(scorer, [[text] for text in chunk])):
                if isinstance(scores, ScorerError):
                    failure = failure or str(scores)
                else:
                    values[start + i] = scores.values[0]
            advance(len(chunk))
    except (*SCORER_DOWN, ScorerBrokenError) as error:
        failure = failure or str(error)
    return Covered(values, time.perf_counter() - started, failure)
