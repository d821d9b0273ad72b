"""Rows that end because their text holds a stop string, wherever its tokens part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tide.core.settings import Sampling

# Steps between looks at the texts: to read them costs about as much as a small model's step.
LOOK_EVERY = 8

# What rows of ids read as.
Texts = Callable[[Sequence[Sequence[int]]], list[str]]
# How many of the first ids it takes until their text is enough: see `Vocabulary.fewest`.
Fewest = Callable[[Sequence[int], Callable[[str], bool]], int]


class StopStrings:
    """The rows of a batch that may still come to hold one of their stop strings."""

    def __init__(self, samplings: Sequence[Sampling], texts: Texts, fewest: Fewest) -> None:
        self._open = {row: own for row, own in enumerate(samplings) if own.stop}
        self._texts, self._fewest = texts, fewest

    def __len__(self) -> int:
        return len(self._open)

    def found(self, ids: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Each row that holds one now, once, and how many of its ids it took.

        ids: those of all rows, which only ever grow.
        """
        rows = list(self._open)
        for row, text in zip(rows, self._texts([ids[row] for row in rows]), strict=True):
            if _holds(self._open[row], text):
                yield row, self._fewest(ids[row], partial(_holds, self._open.pop(row)))


def _holds(sampling: Sampling, text: str) -> bool:
    return sampling.stop_in(text) is not None
