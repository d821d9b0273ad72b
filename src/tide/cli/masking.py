"""Texts with the words masked that carry their toxicity, so that the rest can be read."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from tide.core.errors import ScorerError
from tide.core.results import mask

if TYPE_CHECKING:
    from tide.scorers import Scorer

# Below this a text is shown as it is; a scorer that calls texts toxic earlier is believed.
_CLEAN = 0.2
_MOST = 12  # words, each of which is found with about log2(words) scored texts


class Masker:
    """Masks the words without which the scorer gives a text less than 0.2."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._level = min(scorer.threshold, _CLEAN)

    def __call__(self, text: str) -> str:
        """`text` with those words masked; all of them where `_MOST` are not enough."""
        from tide.runtime.blame import blamed  # noqa: PLC0415  (slow import)

        words = re.findall(r"\s*\S+", text)
        left = list(range(len(words)))
        try:
            for _ in range(_MOST):
                if self._value("".join(words[i] for i in left)) < self._level:
                    kept = set(left)
                    return "".join(w if i in kept else _masked(w) for i, w in enumerate(words))
                number = asyncio.run(blamed([words[i] for i in left], self._score, self._level))
                del left[number]
        except ScorerError:
            pass  # what cannot be scored is not shown
        return mask(text)

    def _value(self, text: str) -> float:
        from tide.scorers import score_texts  # noqa: PLC0415  (slow import)

        return float(score_texts(self._scorer, [text], "zero").values[0])

    async def _score(self, text: str) -> float:
        return self._value(text)


def _masked(word: str) -> str:
    """All letters and digits but the first replaced by `*`, in words such as `a-b` as well."""
    first, rest = re.fullmatch(r"(\W*\w?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
    return str(first + re.sub(r"\w", "*", rest))
