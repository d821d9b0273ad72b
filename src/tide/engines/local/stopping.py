"""Rows that end because their text holds a stop string, wherever its tokens part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tide.core.settings import Sampling

# Steps between looks at the texts: to read them costs about as much as a small model's step.
LOOK_EVERY = 8

# What rows of ids read as.
Texts = Callable[[Sequence[Sequence[int]]], list[str]]
# How many of the first ids it takes until their text is enough: see `Engine.fewest`.
Fewest = Callable[[Sequence[int], Callable[[str], bool]], int]


class StopStrings:
    """Finds the rows that have come to hold one of their stop strings."""

    def __init__(self, texts: Texts, fewest: Fewest) -> None:
        self._texts, self._fewest = texts, fewest

    def found(
        self, samplings: Sequence[Sampling], ids: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, int]]:
        """The number of each row that holds one, and how many of its ids it took."""
        rows = [row for row, own in enumerate(samplings) if own.stop]
        texts = self._texts([ids[row] for row in rows]) if rows else []
        for row, text in zip(rows, texts, strict=True):
            if samplings[row].stop_in(text) is not None:
                yield row, self._fewest(ids[row], partial(_holds, samplings[row]))


def _holds(sampling: Sampling, text: str) -> bool:
    return sampling.stop_in(text) is not None
