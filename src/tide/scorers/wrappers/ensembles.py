"""`max:A,B` and `mean:A,B`: several scorers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from tide.core.errors import InputError
from tide.plugins.options import checked
from tide.scorers.base import Floats, Scorer, ask


class _Ensemble:
    """Every member scores every text; if one fails, the ensemble fails: it has no score then.

    scores_of, threshold_of: of the members' scores (scorers, texts) and of their thresholds.
    """

    kind: ClassVar[str]
    scores_of: ClassVar[Callable[..., Any]]
    threshold_of: ClassVar[Callable[..., float]]

    @checked
    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) < 2:
            raise InputError(f"scorer {self.kind}: needs two or more, as in {self.kind}:A,B")
        self._scorers = list(scorers)
        self.name = f"{self.kind}:{','.join(scorer.name for scorer in scorers)}"
        self.threshold = self.threshold_of([scorer.threshold for scorer in scorers])

    def score(self, texts: Sequence[str]) -> Floats:
        members = np.array([ask(scorer, texts) for scorer in self._scorers])
        return np.asarray(self.scores_of(members, axis=0))

    def close(self) -> None:
        for scorer in self._scorers:
            scorer.close()


class MaxScorer(_Ensemble):
    """The highest score of any member: a text passes only if it passes all of them.

    threshold: the lowest of the members'.
    """

    kind, scores_of, threshold_of = "max", staticmethod(np.max), staticmethod(min)


class MeanScorer(_Ensemble):
    """The mean of the members' scores, which should mean the same (calibrate them first)."""

    kind, scores_of, threshold_of = "mean", staticmethod(np.mean), staticmethod(fmean)
