"""Texts with the words masked, or marked, that carry their toxicity."""

from __future__ import annotations

import asyncio
import re
import time
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
    """Finds the words whose removal makes a text score less than 0.2."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._level = min(scorer.threshold, _CLEAN)

    def __call__(self, text: str) -> tuple[list[str], set[int]]:
        """The words of `text`, each with the space before it, and the numbers of those found.

        All of them where `_MOST` are not enough. Raises ScorerError.
        """
        from tide.runtime.blame import blamed  # noqa: PLC0415  (slow import)

        words = re.findall(r"\s*\S+", text)
        left = list(range(len(words)))
        for _ in range(_MOST):
            if self._value("".join(words[i] for i in left)) < self._level:
                return words, set(range(len(words))) - set(left)
            number = asyncio.run(blamed([words[i] for i in left], self._score, self._level))
            del left[number]
        return words, set(range(len(words)))

    def _value(self, text: str) -> float:
        from tide.scorers import score_texts  # noqa: PLC0415  (slow import)

        return float(score_texts(self._scorer, [text], "zero").values[0])

    async def _score(self, text: str) -> float:
        return self._value(text)


class Masker:
    """Masks the words that carry the toxicity; the whole text where it cannot be scored."""

    def __init__(self, scorer: Scorer) -> None:
        self._blame = Blame(scorer)

    def __call__(self, text: str) -> str:
        try:
            words, found = self._blame(text)
        except ScorerError:
            return mask(text)
        if len(found) == len(words):
            return mask(text)
        return "".join(_masked(w) if i in found else w for i, w in enumerate(words))


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


def _masked(word: str) -> str:
    """All letters and digits but the first replaced by `*`, in words such as `a-b` as well."""
    first, rest = re.fullmatch(r"(\W*\w?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
    return str(first + re.sub(r"\w", "*", rest))
