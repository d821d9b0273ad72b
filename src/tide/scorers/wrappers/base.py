"""What the wrappers share that call scorers in another way."""

from __future__ import annotations

from collections.abc import Sequence

from tide.scorers.base import (
    Attributed,
    Floats,
    Scorer,
    ask_attributes,
    attributes_of,
    slowest_pace,
)
from tide.scorers.language import languages_of


class ScorerWrapper:
    """A scorer around one or several others.

    Name and threshold are those of the first, unless it says otherwise; attributes are those of any
    of them, and languages those that all read. What it adds to a call is its `_asked`.
    """

    def __init__(self, *scorers: Scorer) -> None:
        self._scorer, self._scorers = scorers[0], scorers
        self.name = self._scorer.name
        self.threshold = self._scorer.threshold
        self.pace = slowest_pace(scorers)
        self.attributes = tuple(dict.fromkeys(n for one in scorers for n in attributes_of(one)))
        known = [set(found) for one in scorers if (found := languages_of(one)) is not None]
        self.languages = tuple(sorted(set.intersection(*known))) if known else None

    def score(self, texts: Sequence[str]) -> Floats:
        return self._asked(texts).values

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        return self._asked(texts)

    def close(self) -> None:
        for scorer in self._scorers:
            scorer.close()

    def _asked(self, texts: Sequence[str]) -> Attributed:
        return ask_attributes(self._scorer, texts)
