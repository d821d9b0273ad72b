"""Scores of many texts by a scorer that may fail for some, or break down on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tide.core.errors import SCORER_DOWN, ScorerBrokenError, ScorerError
from tide.scorers.base import Floats, Scorer, score_groups

_CHUNK = 256


@dataclass(frozen=True)
class Covered:
    """values: shape (n,), NaN for a text without a score. failure: why the first one has none.

    seconds: that scoring took, for the texts that have a score and those that failed.
    """

    values: Floats
    seconds: float
    failure: str | None = None

    @property
    def known(self) -> Floats:
        """Which texts have a score, shape (n,), bool."""
        return ~np.isnan(self.values)

    @property
    def share(self) -> float:
        """The share of texts with a score."""
        return float(self.known.mean()) if len(self.values) else 0.0


def score_covered(
    scorer: Scorer, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None
) -> Covered:
    """Score as many texts as the scorer can, short ones too.

    A text that it rejects has no score. Once it is unavailable or broken, it is not asked again,
    and earlier scores count. advance: called with the number of finished texts.
    """
    values, failure = np.full(len(texts), np.nan), None
    started = time.perf_counter()
    try:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            for i, scores in enumerate(score_groups(scorer, [[text] for text in chunk], "score")):
                if isinstance(scores, ScorerError):
                    failure = failure or str(scores)
                else:
                    values[start + i] = scores.values[0]
            advance(len(chunk))
    except (*SCORER_DOWN, ScorerBrokenError) as error:
        failure = failure or str(error)
    return Covered(values, time.perf_counter() - started, failure)
