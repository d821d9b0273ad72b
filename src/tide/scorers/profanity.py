"""`profanity-check`: the alt-profanity-check package, TF-IDF and a linear SVM.

It is quick and was trained by others on other data, which makes it a good judge of what was
optimised against another scorer. (The package reads its own bundled model with joblib.)
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tide.core.optional import require
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.language import warn_of_other_languages
from tide.scorers.readings import REVISION, score_readings


class ProfanityCheckScorer(PlainScorer):
    """Probability of profanity (English)."""

    pace = "word"
    languages = ("en",)

    def __init__(self) -> None:
        self._package: Any = require("profanity_check", extra="profanity")
        self.name = f"profanity-check@{version('alt-profanity-check')}-{REVISION}"

    def score(self, texts: Sequence[str]) -> Floats:
        warn_of_other_languages("profanity-check", texts)
        return score_readings(self._package.predict_prob, texts)
