"""Sums the weights of the features of growing texts, each from the sum of the text before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

# The columns of the features of a word, and the column of a pair of words, if it is a feature.
WordColumns = Callable[[str], tuple[int, ...]]
PairColumn = Callable[[str, str], int | None]
_TAIL = 3  # words by which a text finds the text from which it has grown
_GROWN = 4  # maximum number of words by which it has grown
_NEAR = 8  # words of which its length and its beginning may differ
_MOST_WORDS, _MOST_TEXTS = 256, 512


class Sums:
    """Sums of texts, given as words.

    A sum does not depend on earlier texts: the weights are multiples of 2^-24, whose sums are
    exact in any order.
    """

    def __init__(
        self, weights: NDArray[np.float64], word_columns: WordColumns, pair_column: PairColumn
    ) -> None:
        self._weights = np.round(weights * 2**24) / 2**24
        self._read: Any = self._weights.data  # reads single numbers quickly
        self._word_columns, self._pair_column = word_columns, pair_column
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
        columns = list(set(self._columns(words, words)))
        return float(self._weights[columns].sum()), len(columns)

    def _columns(self, words: Sequence[str], paired: Sequence[str]) -> list[int]:
        """Return the columns of `words`, and of the pairs of words next to each other in `paired`.

        A column occurs as often as its features.
        """
        columns = [column for word in words for column in self._word_columns(word)]
        for pair in pairwise(paired):
            column = self._pair_column(*pair)
            if column is not None:
                columns.append(column)
        return columns

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
        old, kept = window.words, window.kept(gone, words)
        if kept:
            end = gone + kept
            window.remove(self._columns(old[:gone], old[: gone + 1]), self._read)
            window.remove(self._columns(old[end:], old[end - 1 :]), self._read)
            window.add(self._columns(words[kept:], words[kept - 1 :]), self._read)
        else:
            window.total, window.counts = 0.0, {}
            window.add(self._columns(words, words), self._read)
        window.words = words
        return window.total, len(window.counts)


class _Window:
    """The words of a text. counts: how often each column occurs; empty until the text has grown.

    total: the sum of the weights of all columns.
    """

    def __init__(self, words: list[str]) -> None:
        self.words, self.total = words, 0.0
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
        if not self.counts:
            return 0
        left = self.words[gone:]
        if left == words[: len(left)]:
            return len(left)
        differ = (at for at, (old, new) in enumerate(zip(left, words, strict=False)) if old != new)
        return next(differ, min(len(left), len(words)))

    def add(self, columns: Sequence[int], weights: Sequence[float]) -> None:
        counts = self.counts
        for column in columns:
            count = counts.get(column, 0)
            if count == 0:
                self.total += weights[column]
            counts[column] = count + 1

    def remove(self, columns: Sequence[int], weights: Sequence[float]) -> None:
        counts = self.counts
        for column in columns:
            count = counts.pop(column) - 1
            if count:
                counts[column] = count
            else:
                self.total -= weights[column]
