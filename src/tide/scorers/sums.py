"""Sums the weights of the features of growing texts, each from the sum of the text before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The columns of the features that the last word of a run adds to it.
Columns = Callable[[Sequence[str]], list[int]]
_TAIL = 3  # words by which a text finds the text from which it has grown
_GROWN = 4  # maximum number of words by which it has grown
_NEAR = 8  # words of which its length and its beginning may differ
_MOST_WORDS, _MOST_TEXTS = 256, 512


class Sums:
    """Sums of texts, given as words.

    A sum does not depend on earlier texts: the weights are multiples of 2^-24, whose sums are
    exact in any order. columns: of the features that end with a word. reach: number of words before
    a word on which its features depend.
    """

    def __init__(self, weights: NDArray[np.float64], columns: Columns, reach: int) -> None:
        self._weights = np.round(weights * 2**24) / 2**24
        self._read: Any = self._weights.data  # reads single numbers quickly
        self._columns, self._reach = columns, reach
        self._windows: OrderedDict[tuple[str, ...], list[_Window]] = OrderedDict()
        self._lock = Lock()  # several threads may score

    def of(self, words: list[str]) -> tuple[float, int]:
        """Return the sum of the weights of the features of a text, and their number."""
        if not _TAIL <= len(words) <= _MOST_WORDS:
            return self._from_scratch(words)
        with self._lock:
            window, gone = self._before(words)
            self._windows.setdefault(tuple(words[-_TAIL:]), []).append(window or _Window(words))
            if len(self._windows) > _MOST_TEXTS:
                self._windows.popitem(last=False)
            # Most texts that are scored do not grow, and nothing is made for their first words.
            return self._from_scratch(words) if window is None else self._moved(window, gone, words)

    def _from_scratch(self, words: Sequence[str]) -> tuple[float, int]:
        columns = {column for group in self._groups(words, 0, len(words)) for column in group}
        return float(self._weights[list(columns)].sum()), len(columns)

    def _groups(self, words: Sequence[str], start: int, end: int) -> list[list[int]]:
        reach = self._reach
        return [self._columns(words[max(0, at - reach) : at + 1]) for at in range(start, end)]

    def _before(self, words: list[str]) -> tuple[_Window | None, int]:
        """Take the window of a text from which this one has grown, if one is known.

        Also return the number of its words before this text's first words.
        """
        for end in range(len(words), max(_TAIL, len(words) - _GROWN) - 1, -1):
            tail = tuple(words[end - _TAIL : end])
            for window in self._windows.get(tail, ()):
                gone = window.gone(words)
                if gone is not None:
                    self._windows[tail].remove(window)
                    if not self._windows[tail]:
                        del self._windows[tail]
                    return window, gone
        return None, 0

    def _moved(self, window: _Window, gone: int, words: list[str]) -> tuple[float, int]:
        """Make a window that of `words`, by what differs; return its sum. gone: see `_before`."""
        kept = window.kept(gone, words)
        # The features of the first words depended on words that have gone.
        fresh = min(kept, self._reach) if gone else 0
        before = self._groups(words, 0, fresh)
        after = self._groups(words, kept, len(words))
        for group in (*window.groups[: gone + fresh], *window.groups[gone + kept :]):
            window.remove(group, self._read)
        for group in (*before, *after):
            window.add(group, self._read)
        window.groups = [*before, *window.groups[gone + fresh : gone + kept], *after]
        window.words = words
        return window.total, len(window.counts)


class _Window:
    """The words of a text. counts: the number of its words that have each column.

    groups: the columns of each word; none until the text has grown. total: the sum of the weights
    of all columns.
    """

    def __init__(self, words: list[str]) -> None:
        self.words, self.total = words, 0.0
        self.groups: list[list[int]] = []
        self.counts: dict[int, int] = {}

    def gone(self, words: list[str]) -> int | None:
        """Return the number of words before the first words of the text `words`.

        It is None if this text does not have them near its beginning, or is much longer or shorter.
        """
        if abs(len(self.words) - len(words)) > _NEAR:
            return None
        first = words[:_TAIL]
        return next((i for i in range(_NEAR) if self.words[i : i + _TAIL] == first), None)

    def kept(self, gone: int, words: list[str]) -> int:
        """Return the number of words after the first `gone` that the text `words` begins with."""
        if not self.groups:
            return 0
        left = self.words[gone:]
        if left == words[: len(left)]:
            return len(left)
        differ = (at for at, (old, new) in enumerate(zip(left, words, strict=False)) if old != new)
        return next(differ, min(len(left), len(words)))

    def add(self, columns: Sequence[int], weights: Sequence[float]) -> None:
        counts = self.counts
        for column in set(columns).difference(counts):
            self.total += weights[column]
        for column in columns:
            counts[column] = counts.get(column, 0) + 1

    def remove(self, columns: Sequence[int], weights: Sequence[float]) -> None:
        counts = self.counts
        for column in columns:
            count = counts.pop(column) - 1
            if count:
                counts[column] = count
            else:
                self.total -= weights[column]
