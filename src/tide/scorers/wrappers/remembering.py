"""Attributes of the texts that a scorer was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tide.scorers.attributes import ask_attributes
from tide.scorers.base import Scorer, ask
from tide.scorers.wrappers.base import Transparent


class RememberingScorer(Transparent):
    """Scores as `scorer` does, and remembers the attributes of every text that it scored.

    remembered: by text, each attribute's score. It stays empty for a scorer without attributes.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer)
        self.remembered: dict[str, dict[str, float]] = {}

    def _through(self, call: Callable[[Scorer, Sequence[str]], Any], texts: Sequence[str]) -> Any:
        if not self.attributes:
            return call(self._scorer, texts)
        found = ask_attributes(self._scorer, texts)
        for i, text in enumerate(texts):
            self.remembered[text] = {
                name: float(scores[i]) for name, scores in found.attributes.items()
            }
        return found.values if call is ask else found
