"""Masks or marks toxic words: terms of a list, and words that make a scorer call a text toxic."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from rich.text import Text

from tide.core.errors import ScorerError
from tide.core.results import mask
from tide.core.sanitize import visible

if TYPE_CHECKING:
    from tide.scorers import Scorer

MARK = "bold red underline"
_MOST = 12  # maximum distinct words to blame; each costs about log2(words) scored texts
# Matches a word and the space before it. Spaced letters ("r u d e") are one word; an HTML tag is
# separate from adjacent words.
_WORD = re.compile(
    r"\s*(?:(?<!\w)(?:[^\W_]|\*)(?:[\s._-]+(?:[^\W_]|\*)){2,}(?!\w)|<[^<>\s]*>?|[^\s<]+)"
)
# Names of social groups are never blamed.
PEOPLE = (
    # nationality and origin
    "American", "Mexican", "Nigerian", "Chinese person", "German", "Indian", "Iranian", "Pole",
    "Russian", "Brazilian", "African American", "Asian American", "Arab", "Black person",
    "white person", "Latino man", "Latina woman", "Indigenous person", "Romani person", "immigrant",
    "refugee",
    # religion
    "Muslim", "Christian", "Catholic", "Jewish person", "Hindu", "Buddhist", "Sikh", "atheist",
    # gender and orientation
    "woman", "man", "girl", "boy", "transgender person", "transgender woman", "nonbinary person",
    "gay man", "lesbian woman", "bisexual person", "straight person",
    # age
    "young person", "older person", "teenager", "retired person",
    # disability
    "person with a disability", "deaf person", "blind person", "person who uses a wheelchair",
    "person with autism", "person with Down syndrome", "person with epilepsy",
)  # fmt: skip


class ToxicWords:
    """Finds the toxic words of a text.

    It finds the terms of the bundled list of profanities. While the scorer calls the remaining text
    toxic, it also removes the last word of the shortest toxic prefix, and reports this word if the
    scorer calls the word alone toxic. Plain words about people ("young", "white") and words in a
    language that the scorer does not read are never reported. If scoring fails, only listed terms
    are reported.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def __call__(self, text: str) -> tuple[list[str], set[int]]:
        """Return the words of `text`, each with the space before it, and indices of toxic words."""
        from tide.scorers.language import reads  # noqa: PLC0415  (slow import)

        words = _WORD.findall(text)
        found = _listed(words)
        if reads(self._scorer, text):
            with suppress(ScorerError):
                found |= self._blamed(words, found)
        return words, found

    def _blamed(self, words: list[str], listed: set[int]) -> set[int]:
        left = [number for number in range(len(words)) if number not in listed]
        found: set[int] = set()
        for _ in range(_MOST):
            rest = [words[i] for i in left]
            if self._value("".join(rest)) < self._scorer.threshold:
                break
            # The blamed word is the last word of the shortest toxic prefix.
            place = bisect_left(
                range(1, len(rest)),
                self._scorer.threshold,
                key=lambda count: self._value("".join(rest[:count])),
            )
            word = _letters(rest[place])
            same = {left[place], *(i for i in left if _letters(words[i]) == word)}
            left = [number for number in left if number not in same]
            alone = self._value(rest[place].strip())
            if word not in _plain_words() and alone >= self._scorer.threshold:
                found |= same
        return found

    def _value(self, text: str) -> float:
        from tide.scorers import score_texts  # noqa: PLC0415  (slow import)

        return float(score_texts(self._scorer, [text], "zero").values[0])


class Masker:
    """Masks the toxic words of a text, except their first letters."""

    def __init__(self, scorer: Scorer) -> None:
        self._words = ToxicWords(scorer)

    def __call__(self, text: str) -> str:
        words, found = self._words(text)
        shown = (mask(word) if i in found else word for i, word in enumerate(words))
        return "".join(shown) + text[sum(map(len, words)) :]


class Marker:
    """Underlines toxic words on a terminal; stops after `seconds` of scoring in total."""

    def __init__(self, scorer: Scorer, seconds: float = 3.0) -> None:
        self._words, self._left = ToxicWords(scorer), seconds

    def __call__(self, text: str) -> Text:
        """Return `text` on one line, with toxic words underlined."""
        if self._left <= 0:
            return Text(visible(" ".join(text.split())))
        started = time.monotonic()
        words, found = self._words(text)
        self._left -= time.monotonic() - started
        marked = Text()
        for number, word in enumerate(words):
            is_apart = bool(marked) and word[:1].isspace()
            shown = visible(" ".join(word.split()))
            marked.append(" " if is_apart else "").append(shown, MARK if number in found else "")
        return marked


def _listed(words: list[str]) -> set[int]:
    """Return the indices of words that belong to listed terms; shorter terms take precedence."""
    from tide.scorers.words import (  # noqa: PLC0415  (slow import)
        LONGEST,
        bundled_terms,
        term_hashes,
    )

    found: set[int] = set()
    for length in range(1, LONGEST + 1):
        for start in range(len(words) - length + 1):
            term = range(start, start + length)
            if found.isdisjoint(term) and not bundled_terms().isdisjoint(
                term_hashes("".join(words[start : start + length]))
            ):
                found.update(term)
    return found


@cache
def _plain_words() -> frozenset[str]:
    """Return the words in `PEOPLE`. A scorer that calls one of these words toxic is wrong."""
    return frozenset(_letters(word) for person in PEOPLE for word in person.split())


def _letters(word: str) -> str:
    return re.sub(r"\W", "", word).casefold()
