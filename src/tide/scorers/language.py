"""The base of scorers that undo disguises, and the detection of texts that are not English."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tide.core.sanitize import logger
from tide.scorers.base import Floats, PlainScorer, Scorer
from tide.scorers.disguises import is_latin, readings

_LOG = logger(__name__)

# Minimum number of letters for deciding the language.
_LEAST_LETTERS = 8
MULTILINGUAL = "detoxify:multilingual, or a guard such as guard:Qwen/Qwen3Guard-Gen-0.6B"
# Nearly every English text of eight or more words contains words of _ENGLISH. No English text
# contains many words of _OTHER, which are frequent in other languages of Latin script.
_LEAST_WORDS, _MOST_WORDS = 8, 60
_MARKS = ".,:;!?()\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u00bf\u00a1"
_ENGLISH = (
    "the and that to it's it she they you his her their your my i'm with this these those but not "
    "who what if from by have had been would could will about when which there just like him them "
    "are get don't because than out up how"
)
_OTHER = (
    "der das und ich nicht ist ein eine mit sie es den zu el la los las que de en y un una por con "
    "su se le les et est il je ne pas des du qui che di non sono ho uma o os n\u00e3o em da para "
    "het een van ik niet dat och att det jag inte som og p\u00e5 nie si\u0119 na jest bir ve bu "
    "i\u00e7in"
)
_ENGLISH_WORDS, _OTHER_WORDS = frozenset(_ENGLISH.split()), frozenset(_OTHER.split())
# A text of fewer Latin letters may be in any language. At least this share of most English texts'
# words are among _ENGLISH, so they need no language detection.
_LEAST_LATIN, _ENGLISH_SHARE = 20, 0.15
_MOST_CHARACTERS = 1000  # the end of a text decides its language
_warned: set[str] = set()


def languages_of(scorer: Scorer) -> tuple[str, ...] | None:
    """Return the languages that a scorer declares, such as `en`; None if it declares none."""
    return getattr(scorer, "languages", None)


def is_not_latin(text: str) -> bool:
    """Whether most letters of `text` are not Latin."""
    if text.isascii():
        return False
    letters = [c for c in text if c.isalpha()]
    foreign = sum(not is_latin(c) for c in letters)
    return len(letters) >= _LEAST_LETTERS and 2 * foreign > len(letters)


def is_not_english(text: str) -> bool:
    """Whether `text` is plainly in another script or language; see `language_of` for which one.

    Scorers ask this of every text, so it looks for frequent words instead of loading a model.
    """
    if is_not_latin(text):
        return True
    words = text.lower().split()[:_MOST_WORDS]
    if 20 * len(_ENGLISH_WORDS.intersection(words)) >= len(words):
        return False  # so most texts need no closer look
    words = [word.strip(_MARKS) for word in words]
    if len(words) < _LEAST_WORDS or 20 * sum(word in _ENGLISH_WORDS for word in words) >= len(
        words
    ):
        return False
    return 6 * sum(word in _OTHER_WORDS for word in words) >= len(words)


def language_of(text: str, sure: float = 0.8) -> str:
    """Return the ISO 639 code of a text's language; "" if unclear, "und" for an unknown script.

    sure: minimum probability of a language other than English.
    """
    text = text[-_MOST_CHARACTERS:]
    is_foreign = is_not_latin(text)
    if not is_foreign:
        words = [word.strip(_MARKS) for word in text.lower().split()]
        if sum(map(str.isalpha, text)) < _LEAST_LATIN:
            return ""
        if sum(word in _ENGLISH_WORDS for word in words) >= _ENGLISH_SHARE * len(words):
            return "en"
    language, probability = _identifier().classify(text)
    if probability >= sure and language != "zxx":  # numbers, code and the like
        return {"nn": "no"}.get(language, str(language))
    return "und" if is_foreign else ""


@cache
def _identifier() -> Any:
    """Load the language detection, which takes a second."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415  (slow import)

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def warn_of_other_languages(name: str, texts: Sequence[str]) -> None:
    """Warn, once for each scorer and process, if one of `texts` is mostly in another language.

    Scorers that read only English call this, because their scores of other languages mean nothing.
    texts: without disguises.
    """
    if name in _warned or not any(map(is_not_english, texts)):
        return
    _warned.add(name)
    _LOG.warning(
        "scorer %s: reads only English, and a text is mostly in another language, so its score "
        "means nothing, and word lists find little; use a scorer that knows the language (%s)",
        name, MULTILINGUAL,
    )  # fmt: skip


class ReadingScorer(PlainScorer, ABC):
    """Base of scorers that undo disguises (`tide.scorers.disguises`).

    A text gets the highest score of its readings. Scorers that read only English warn about texts
    in other languages.
    """

    pace = "word"
    languages: tuple[str, ...] | None = None
    name: str
    _readings: Callable[[str], tuple[str, ...]] = staticmethod(readings)

    @abstractmethod
    def _read(self, texts: list[str]) -> Sequence[float] | Floats:
        """Return the score of each reading."""

    def score(self, texts: Sequence[str]) -> Floats:
        if len(texts) == 0:
            return np.zeros(0)
        rows = [self._readings(text) for text in texts]
        if self.languages == ("en",):
            warn_of_other_languages(self.name.partition("@")[0], [row[0] for row in rows])
        values = self._read([reading for row in rows for reading in row])
        if len(values) == len(texts):
            return np.asarray(values, dtype=np.float64)
        starts = np.cumsum([0, *map(len, rows[:-1])])
        return np.asarray(np.maximum.reduceat(values, starts), dtype=np.float64)
