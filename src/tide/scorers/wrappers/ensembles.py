"""`max:A,B`, `mean:A,B` and `confirm:A,B`: several scorers as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, ClassVar

import numpy as np

from tide.core.errors import InputError
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Floats, Scorer, ask_attributes, attributes_of, pace_of
from tide.scorers.wrappers.base import ScorerWrapper


class _Ensemble(ScorerWrapper):
    """Every member scores every text; if one fails, the ensemble fails: it has no score then.

    An attribute is joined as the scores are, over those members that have it.

    scores_of, threshold_of: of the members' scores (scorers, texts) and of their thresholds.
    """

    kind: ClassVar[str]
    scores_of: ClassVar[Callable[..., Any]]
    threshold_of: ClassVar[Callable[..., float]]

    @checked
    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) < 2:
            raise InputError(f"scorer {self.kind}: needs two or more, as in {self.kind}:A,B")
        super().__init__(*scorers)
        self.name = f"{self.kind}:{','.join(scorer.name for scorer in scorers)}"
        self.threshold = self.threshold_of([scorer.threshold for scorer in scorers])

    def _asked(self, texts: Sequence[str]) -> Attributed:
        members = [ask_attributes(scorer, texts) for scorer in self._scorers]
        found = {
            name: [member.attributes[name] for member in members if name in member.attributes]
            for name in self.attributes
        }
        return Attributed(
            self._joined([member.values for member in members]),
            {name: self._joined(columns) for name, columns in found.items()},
        )

    def _joined(self, members: Sequence[Floats]) -> Floats:
        return np.asarray(self.scores_of(np.array(members), axis=0))


class MaxScorer(_Ensemble):
    """The highest score of any member: a text passes only if it passes all of them.

    threshold: the lowest of the members'.
    """

    kind, scores_of, threshold_of = "max", staticmethod(np.max), staticmethod(min)


class MeanScorer(_Ensemble):
    """The mean of the members' scores, which should mean the same (calibrate them first)."""

    kind, scores_of, threshold_of = "mean", staticmethod(np.mean), staticmethod(fmean)


# The lowest score with which a preset rejects a text: from here on the second scorer is asked.
_DOUBT = 0.1


class ConfirmScorer(ScorerWrapper):
    """The second scorer is asked where the first objects to a text; the lower score counts.

    A quick scorer that counts words is then corrected by one that reads sentences, at a cost on
    those texts alone. The first objects from 0.1 on; lower scores of it stand. Threshold, pace and
    attributes are those of the first.
    """

    @checked
    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len(scorers) != 2:
            raise InputError("scorer confirm: needs two, as in confirm:pocket,sentence")
        super().__init__(*scorers)
        first, self._second = scorers
        self.name = f"confirm:{first.name},{self._second.name}"
        self.pace, self.attributes = pace_of(first), attributes_of(first)

    def _asked(self, texts: Sequence[str]) -> Attributed:
        found = ask_attributes(self._scorer, texts)
        values = found.values.copy()
        doubted = np.flatnonzero(values >= _DOUBT)
        if len(doubted):
            second = ask_attributes(self._second, [texts[int(i)] for i in doubted]).values
            values[doubted] = np.minimum(values[doubted], second)
        return Attributed(values, found.attributes)
