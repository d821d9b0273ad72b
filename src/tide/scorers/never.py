"""1.0 for a text that holds one of the words of a policy's `never`, else 0.0.

Stricter than `lexicon`, which measures: it also finds disguised words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import regex

from tide.core.text import UNSPACED
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.pocket import normalize
from tide.scorers.readings import digest_of, readings, score_finds

# A word is also whole beside a script without spaces, and between Markdown's underscores.
_LETTER = rf"[\w--[_{UNSPACED}]]"
_APART = regex.compile(r"(?V1)(?<![\w--_])[\w--_](?:[\W_]{1,3}[\w--_](?![\w--_]))+")
_BETWEEN = regex.compile(r"[\W_]+")


class NeverScorer(PlainScorer):
    """Whether a text holds a word or phrase as a whole, in any case.

    It searches the readings of the text (`tide.scorers.readings`), with any space between the words
    of a phrase; the text with digits read as letters, as in `pocket`; and the text with spaced
    letters joined.
    """

    pace = "word"

    def __init__(self, words: Iterable[str]) -> None:
        read = {reading for word in words for reading in readings(word)}
        listed = sorted({spelling for one in read for spelling in _spellings(one)} - {""})
        self.name = f"never@{digest_of(listed)}"
        self._whole = regex.compile(
            rf"(?V1)(?<!{_LETTER})\L<words>(?!{_LETTER})", words=listed, cache_pattern=False
        )
        joined = [one for word in listed if len(one := _BETWEEN.sub("", word)) > 1]
        self._joined = regex.compile(r"\L<words>", words=joined, cache_pattern=False)

    def score(self, texts: Sequence[str]) -> Floats:
        return score_finds(self._holds, texts)

    def _holds(self, text: str) -> bool:
        if any(map(self._whole.search, _spellings(text))):
            return True
        apart = (_BETWEEN.sub("", one[0]) for one in _APART.finditer(text.casefold()))
        return any(map(self._joined.search, apart))


def _spellings(text: str) -> set[str]:
    return {" ".join(spelling.split()) for spelling in (text.casefold(), normalize(text))}
