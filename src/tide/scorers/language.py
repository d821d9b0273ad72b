"""The detection of a text's language."""

from __future__ import annotations

from functools import cache
from typing import Any

from tide.scorers.disguises import is_latin

# Minimum number of letters for deciding the language.
_LEAST_LETTERS = 8
MULTILINGUAL = "detoxify:multilingual, or a guard such as guard:Qwen/Qwen3Guard-Gen-0.6B"
_MARKS = ".,:;!?()\"'\u201c\u201d\u2018\u2019\u00ab\u00bb\u00bf\u00a1"
# At least this share of most English texts' words are among these, so they need no detection.
_ENGLISH_SHARE = 0.15
_ENGLISH = (
    "the and that to it's it she they you his her their your my i'm with this these those but not "
    "who what if from by have had been would could will about when which there just like him them "
    "are get don't because than out up how"
)
_ENGLISH_WORDS = frozenset(_ENGLISH.split())
# A text of fewer Latin letters may be in any language.
_LEAST_LATIN = 20
_MOST_CHARACTERS = 1000  # the end of a text decides its language


def is_not_latin(text: str) -> bool:
    """Whether most letters of `text` are not Latin."""
    if text.isascii():
        return False
    letters = [c for c in text if c.isalpha()]
    foreign = sum(not is_latin(c) for c in letters)
    return len(letters) >= _LEAST_LETTERS and 2 * foreign > len(letters)


def language_of(text: str, sure: float = 0.8) -> str:
    """Return the ISO 639 code of a text's language; "" if unclear, "und" for an unknown script.

    A call takes up to a millisecond, and the first ones a second.

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
    language, probability = load_identifier().classify(text)
    if probability >= sure and language != "zxx":  # numbers, code and the like
        return {"nn": "no"}.get(language, str(language))
    return "und" if is_foreign else ""


@cache
def load_identifier() -> Any:
    """Load the language detection, which takes a second; a server does so when it starts."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415  (slow import)

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
