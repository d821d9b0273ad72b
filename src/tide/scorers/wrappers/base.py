"""What the wrappers share that call a scorer in another way."""

from __future__ import annotations

from tide.scorers.base import Scorer


class Guard:
    """A scorer around another, whose name and threshold it has unless it says otherwise."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.name = scorer.name
        self.threshold = scorer.threshold

    def close(self) -> None:
        self._scorer.close()
