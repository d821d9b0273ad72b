"""`windows:SCORER`: a long text in overlapping windows, of which the worst counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import regex
from pydantic import Field

from tide.core.text import UNSPACED
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Floats, Scorer, score_texts
from tide.scorers.wrappers.base import ScorerWrapper

# Two characters of a script without spaces are a word, and so are 8 of what is longer than any
# word: a window is to be short in every script.
_SPACED = rf"[\S--[{UNSPACED}]]"
_WORD = regex.compile(
    rf"(?V1)(?:(?=[{UNSPACED}])\X){{1,2}}|(?<!{_SPACED}){_SPACED}{{1,24}}+(?!{_SPACED})"
    rf"|(?:(?={_SPACED})\X){{1,8}}"
)

_LONGEST = 64  # code points: marks without end may stand on a letter


class WindowedScorer(ScorerWrapper):
    """The highest score, and attributes, of any window of `words` words; windows overlap by half.

    For scorers that cut a long text at their context's end, or that average a short insult away.
    A text of at most `words` words is scored whole. Two characters of a script without spaces count
    as a word, and so do 8 of a word of more than 24.
    """

    @checked
    def __init__(
        self, scorer: Scorer, words: Annotated[int, Field(ge=2, le=1_000_000)] = 100
    ) -> None:
        super().__init__(scorer)
        self._words = words
        self.name = f"windows:{self._words}:{scorer.name}"

    def _asked(self, texts: Sequence[str]) -> Attributed:
        windows = [split_words(text, self._words) for text in texts]
        short = [i for i, parts in enumerate(windows) if len(parts) == 1]
        whole = super()._asked([texts[i] for i in short])
        parts = [(i, part) for i, some in enumerate(windows) if len(some) > 1 for part in some]
        # A window of marks alone may count as empty, and then as 0: the others decide.
        scores = score_texts(self._scorer, [part for _, part in parts], "zero")
        rows = [*short, *(i for i, _ in parts)]

        def worst(*found: Floats) -> Floats:
            values = np.zeros(len(texts))
            np.maximum.at(values, rows, np.concatenate(found))
            return values

        said = {
            name: np.where(scores.empty, 0.0, column) for name, column in scores.attributes.items()
        }
        return Attributed(
            worst(whole.values, scores.values),
            {name: worst(whole.attributes[name], said[name]) for name in self.attributes},
        )


def split_words(text: str, words: int) -> list[str]:
    """Windows of `words` words (the last may be shorter), each half over the one before.

    No window ends inside a character, but for one of more than 64 code points.
    """
    spans = [
        (start, min(start + _LONGEST, match.end()))
        for match in _WORD.finditer(text)
        for start in range(match.start(), match.end(), _LONGEST)
    ]
    if len(spans) <= words:
        return [text]
    starts = range(0, len(spans) - words // 2, words - words // 2)
    return [text[spans[i][0] : spans[min(i + words, len(spans)) - 1][1]] for i in starts]


def split_bytes(text: str, limit: int) -> list[str]:
    """Parts of at most `limit` bytes of UTF-8, cut at spaces where there are any."""
    parts = []
    while len(text.encode("utf-8", "replace")) > limit:
        head = text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
        cut = max(head.rfind(" "), head.rfind("\n")) + 1 or len(head)
        parts.append(text[:cut])
        text = text[cut:]
    return [*parts, text] if text or not parts else parts
