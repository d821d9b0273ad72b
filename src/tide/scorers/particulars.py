"""1.0 for a text with a name or number that its sources do not hold, else 0.0.

For text that a model writes into somebody's text: it must not add facts about people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import regex

from tide.scorers.base import Floats, PlainScorer

_LETTER = r"[\p{L}\p{M}\p{N}]"
# A word; an address, a time or a number with its marks is one, too.
_WORD = regex.compile(rf"{_LETTER}+(?:['\u2019.,:@/_#+&]+{_LETTER}+)*")
_APOSTROPHE = regex.compile(r"['\u2019]")
_POSSESSIVE = regex.compile(r"['\u2019]s\Z")
# Letters without case may be names, and so may words that hold marks.
_MARKED = regex.compile(r"[\p{N}\p{Lu}\p{Lt}\p{Lo}.,:@/_#+&]")
_NUMBERS = frozenset((
    "zero", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred",
    "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions", "trillion",
    "trillions", "dozen", "dozens",
))  # fmt: skip
# They begin sentences, and are no names.
_BEGINNINGS = frozenset((
    "a", "all", "although", "an", "and", "as", "at", "because", "but", "can", "could", "do", "does",
    "for", "from", "he", "her", "here", "his", "how", "if", "in", "it", "its", "let", "many",
    "maybe", "my", "no", "not", "of", "on", "or", "our", "perhaps", "please", "she", "so", "some",
    "such", "that", "the", "their", "then", "there", "these", "they", "this", "those", "though",
    "to", "we", "what", "when", "where", "which", "while", "who", "why", "with", "yes", "you",
    "your",
))  # fmt: skip
_BEFORE_SENTENCE = regex.compile(r"[\p{Sentence_Terminal}\u2026:\n][\W_]*\Z")
_NEAR = 32  # characters before a word that are looked at


class ParticularsScorer(PlainScorer):
    """Whether a text holds a name or number that none of `sources` holds.

    A name is a word with a capital letter, unless it begins a sentence and is a common word or
    stands in a source in small letters; a word of a script without capitals; and one with marks
    inside, such as an address. Numbers are those in digits, and English words from zero to
    trillions but for one. Names in small letters are not recognised.
    """

    name = "particulars"
    pace = "word"

    def __init__(self, sources: Iterable[str]) -> None:
        self._known = {word for text in sources for word, _ in _words(text)}
        self._small = {word.lower() for word in self._known}

    def score(self, texts: Sequence[str]) -> Floats:
        return np.array([float(any(self._is_new(*one) for one in _words(text))) for text in texts])

    def _is_new(self, word: str, begins: bool) -> bool:
        small = word.lower()
        stem = _APOSTROPHE.split(small)[0]
        if word in self._known or stem == "i":
            return False
        if small in _NUMBERS:
            return small not in self._small
        if begins and (stem in _BEGINNINGS or small in self._known):
            return False
        return _MARKED.search(word) is not None


def _words(text: str) -> Iterator[tuple[str, bool]]:
    """The words, without a possessive `'s`, and whether each begins a sentence."""
    for number, match in enumerate(_WORD.finditer(text)):
        before = text[max(0, match.start() - _NEAR) : match.start()]
        begins = number == 0 or _BEFORE_SENTENCE.search(before) is not None
        yield _POSSESSIVE.sub("", match[0]), begins
