"""`max:A,B` and `mean:A,B`: several scorers as one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from tide.errors import InputError
from tide.scorers.base import Scorer, ask


class _Ensemble:
    """Every member scores every text; if one fails, the ensemble fails: it has no score then."""

    kind: str

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) < 2:
            raise InputError(f"scorer {self.kind}: needs two or more, as in {self.kind}:A,B")
        self._scorers = list(scorers)
        self.name = f"{self.kind}:{','.join(scorer.name for scorer in scorers)}"

    def close(self) -> None:
        for scorer in self._scorers:
            scorer.close()

    def _all(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Shape (scorers, texts)."""
        return np.array([ask(scorer, texts) for scorer in self._scorers])


class MaxScorer(_Ensemble):
    """The highest score of any member: a text passes only if it passes all of them.

    threshold: the lowest of the members'.
    """

    kind = "max"

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        super().__init__(scorers)
        self.threshold = min(scorer.threshold for scorer in scorers)

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        return np.asarray(self._all(texts).max(axis=0))


class MeanScorer(_Ensemble):
    """The mean of the members' scores, which should mean the same (calibrate them first)."""

    kind = "mean"

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        super().__init__(scorers)
        self.threshold = fmean(scorer.threshold for scorer in scorers)

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        return np.asarray(self._all(texts).mean(axis=0))
