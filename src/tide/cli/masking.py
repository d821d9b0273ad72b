"""Texts with the words masked, or marked, that carry their toxicity."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from tide.core.errors import ScorerError
from tide.core.results import mask
from tide.core.sanitize import visible

if TYPE_CHECKING:
    from tide.scorers import Scorer

# Below this a text is shown as it is; a scorer that calls texts toxic earlier is believed.
_CLEAN = 0.2
MARK = "bold red underline"
_MOST = 12  # words, each of which is found with about log2(words) scored texts


class Blame:
    """Finds the words whose removal makes a text score less than `level`, by default 0.2."""

    def __init__(self, scorer: Scorer, level: float | None = None) -> None:
        self._scorer = scorer
        self._level = min(scorer.threshold, _CLEAN) if level is None else level

    def __call__(self, text: str) -> tuple[list[str], set[int]]:
        """The words of `text`, each with the space before it, and the numbers of those found.

        All of them where `_MOST` are not enough. Raises ScorerError.
        """
        from tide.runtime.blocks import blamed  # noqa: PLC0415  (slow import)

        words = re.findall(r"\s*\S+", text)
        left = list(range(len(words)))
        for _ in range(_MOST):
            if self._value("".join(words[i] for i in left)) < self._level:
                found = set(range(len(words))) - set(left)
                return words, _whole(words, self._needed(words, found))
            number = asyncio.run(blamed([words[i] for i in left], self._score, self._level))
            del left[number]
        return words, set(range(len(words)))

    def _needed(self, words: list[str], found: set[int]) -> set[int]:
        """Those of `found` that are toxic by themselves and not only before a worse word."""
        for number in sorted(found):
            others = found - {number}
            if (
                self._value("".join(w for i, w in enumerate(words) if i not in others))
                < self._level
            ):
                found = others
        return found

    def _value(self, text: str) -> float:
        from tide.scorers import score_texts  # noqa: PLC0415  (slow import)

        return float(score_texts(self._scorer, [text], "zero").values[0])

    async def _score(self, text: str) -> float:
        return self._value(text)


class Masker:
    """Masks the words that carry the toxicity; the whole text where it cannot be scored.

    level: What scores less is shown as it is; by default 0.2. `of_prompts` shows what the scorer
        accepts: below that, what is found in prompts is mostly harmless.
    """

    def __init__(self, scorer: Scorer, level: float | None = None) -> None:
        self._blame = Blame(scorer, level)

    @classmethod
    def of_prompts(cls, scorer: Scorer) -> Masker:
        return cls(scorer, scorer.threshold)

    def __call__(self, text: str) -> str:
        try:
            words, found = self._blame(text)
        except ScorerError:
            return mask(text)
        if len(found) == len(words):
            return mask(text)
        runs = groupby(enumerate(words), lambda one: one[0] in found)
        parts = ((is_found, "".join(word for _, word in run)) for is_found, run in runs)
        return "".join(mask(part) if is_found else part for is_found, part in parts)


class Marker:
    """Underlines the words that carry the toxicity, on a terminal.

    A visual aid, not a filter: a text that cannot be scored, and all texts after `seconds` of
    scoring (a slow service), stay as they are.
    """

    def __init__(self, scorer: Scorer, seconds: float = 3.0) -> None:
        self._blame, self._left = Blame(scorer), seconds

    def __call__(self, text: str) -> Text:
        """`text` on one line."""
        plain = Text(visible(" ".join(text.split())))
        if self._left <= 0:
            return plain
        started = time.monotonic()
        try:
            words, found = self._blame(text)
        except ScorerError:
            return plain
        finally:
            self._left -= time.monotonic() - started
        parts = [(visible(w.strip()), MARK if i in found else "") for i, w in enumerate(words)]
        return Text(" ").join(Text(*part) for part in parts)


def _whole(words: list[str], found: set[int]) -> set[int]:
    """`found`, and the other letters of a word that is written with spaces between its letters."""
    found = set(found)
    numbers = range(len(words))
    for run in (numbers, reversed(numbers)):
        goes_on = False  # after a single letter that was found, and dashes
        for number in run:
            letters = len(re.findall(r"[\w*]", words[number]))
            if goes_on and letters <= 1:
                found.add(number)
            if letters:
                goes_on = letters == 1 and number in found
    return found
