"""`language:en=SCORER,other=SCORER` uses another scorer for texts plainly not English."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from tide.core.errors import InputError, ScorerError
from tide.plugins.options import Options
from tide.plugins.specs import Spec, parse
from tide.scorers import REGISTRY, WRAPPERS, load_scorer
from tide.scorers.base import Attributed, Scorer, ask_attributes
from tide.scorers.language import MULTILINGUAL, other_language
from tide.scorers.wrappers.base import ScorerWrapper

# Names and arguments of English scorers; a "lexicon:FILE" may be in any language.
_ENGLISH_SCORERS = {
    *((name, None) for name in ("pocket", "sentence", "profanity-check", "lexicon", "detoxify")),
    *(("detoxify", variant) for variant in ("original", "unbiased")),
}


class LanguageOptions(Options):
    en: str = Field(description="Scorer for English texts and texts too short to classify.")
    other: str | None = Field(
        default=None, description="Scorer for all other texts; by default they are an error."
    )


class LanguageScorer(ScorerWrapper):
    """Sends each text to the scorer that reads its language.

    An attribute that only one scorer has is NaN for texts of the other scorer. threshold: the lower
    threshold of both scorers. Raises InputError for nested `language:` specs.
    """

    options_class = LanguageOptions

    def __init__(self, options: LanguageOptions) -> None:
        self._english = _loaded(options.en)
        self._other = None if options.other is None else _loaded(options.other)
        both = [self._english, *([] if self._other is None else [self._other])]
        super().__init__(*both)
        self.name = "language:" + ",".join(
            f"{key}={scorer.name}" for key, scorer in zip(("en", "other"), both, strict=False)
        )
        self.threshold = min(scorer.threshold for scorer in both)
        if self._other is not None:
            self.languages = None

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        """Raises ScorerError for a text in another language if `other` is not given."""
        where = [other_language(text) for text in texts]
        if self._other is None and any(where):
            raise ScorerError(
                f"scorer {self.name}: a text is mostly {next(filter(None, where))}, and no "
                f"scorer is given for it; add other=SCORER ({MULTILINGUAL})"
            )
        values = np.zeros(len(texts))
        found = {name: np.full(len(texts), np.nan) for name in self.attributes}
        for scorer, foreign in ((self._english, False), (self._other, True)):
            rows = [i for i, one in enumerate(where) if bool(one) is foreign]
            if scorer is None or not rows:
                continue
            answer = ask_attributes(scorer, [texts[i] for i in rows])
            values[rows] = answer.values
            for name, column in answer.attributes.items():
                found[name][rows] = column
        return Attributed(values, found)


def _loaded(spec: str) -> Scorer:
    parts = [_parsed(spec)]
    for part in parts:
        if part.name == "language":
            raise InputError("scorer language: cannot be nested in another 'language:'")
        parts += part.inner
    return load_scorer(spec)


def _parsed(spec: str) -> Spec:
    return parse(spec, "scorer", WRAPPERS, REGISTRY.names())


def strict(spec: str) -> str:
    """Make texts in other languages an error for a scorer that reads only English.

    Returns the new spec. Raises InputError for an invalid spec.
    """

    def reads_english_alone(part: Spec) -> bool:
        if part.inner:
            return any(map(reads_english_alone, part.inner))
        argument = part.argument and part.argument.partition("#")[0]
        return (part.name, argument) in _ENGLISH_SCORERS

    if reads_english_alone(_parsed(spec)):
        return f"language:en=({spec})"
    return spec
