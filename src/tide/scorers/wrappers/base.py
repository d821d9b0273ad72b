"""What the wrappers share that call a scorer in another way."""

from __future__ import annotations

from collections.abc import Sequence

from tide.scorers.base import Attributed, Floats, Scorer, ask_attributes, attributes_of, pace_of
from tide.scorers.language import languages_of


class ScorerWrapper:
    """A scorer around another, whose name and threshold it has unless it says otherwise.

    Its attributes and languages are the other's as well. What it adds to a call is its `_asked`.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.name = scorer.name
        self.threshold = scorer.threshold
        self.pace = pace_of(scorer)
        self.attributes = attributes_of(scorer)
        self.languages = languages_of(scorer)

    def score(self, texts: Sequence[str]) -> Floats:
        return self._asked(texts).values

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        return self._asked(texts)

    def close(self) -> None:
        self._scorer.close()

    def _asked(self, texts: Sequence[str]) -> Attributed:
        return ask_attributes(self._scorer, texts)
