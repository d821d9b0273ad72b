from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tide.scorers.base import Attributed, Floats


class TwoSides:
    """Scores threat by length and insult by capitals; the larger is the score."""

    name, threshold = "two@1", 0.5
    attributes = ("threat", "insult")

    def __init__(self) -> None:
        self.asked = 0

    def score(self, texts: Sequence[str]) -> Floats:
        return self.score_attributes(texts).values

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        self.asked += 1
        threat = np.array([min(1.0, len(text) / 100) for text in texts])
        insult = np.array([sum(map(str.isupper, text)) / max(1, len(text)) for text in texts])
        return Attributed(np.maximum(threat, insult), {"threat": threat, "insult": insult})

    def close(self) -> None:
        pass
