"""What the wrappers share that call a scorer in another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tide.scorers.attributes import Attributed, ask_attributes, attributes_of
from tide.scorers.base import Floats, Scorer, ask

_T = TypeVar("_T")


class Guard:
    """A scorer around another, whose name and threshold it has unless it says otherwise."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.name = scorer.name
        self.threshold = scorer.threshold

    def close(self) -> None:
        self._scorer.close()


class Transparent(Guard):
    """A guard that changes no score, and so has the attributes of its scorer as well.

    What it adds to a call is its `_through`.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer)
        self.attributes = attributes_of(scorer)

    def score(self, texts: Sequence[str]) -> Floats:
        return np.array(self._through(ask, texts), dtype=np.float64)

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        return self._through(ask_attributes, texts)

    def _through(self, call: Callable[[Scorer, Sequence[str]], _T], texts: Sequence[str]) -> _T:
        return call(self._scorer, texts)
