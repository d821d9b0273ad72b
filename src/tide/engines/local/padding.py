"""Padding of sequences that run together, and which to run together so that it is little."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor

# What one more forward pass of a small model costs, in tokens that it could have read instead: the
# bundled model reads some 45 tokens in a millisecond on 2 cores, and a call costs 1.5. In a larger
# model a call costs less than this, never much more.
_CALL = 64

_T = TypeVar("_T")


def reading_cost(size: int, longest: int) -> int:
    """Cost of one call that reads `size` sequences, in tokens."""
    return _CALL + size * longest


def writing_cost(size: int, longest: int) -> int:
    """Cost of writing `longest` tokens after each of `size` sequences: a call for each token."""
    return longest * (_CALL + size)


def length_groups(
    lengths: Sequence[int], cost: Callable[[int, int], int] = reading_cost
) -> list[list[int]]:
    """Indices of `lengths` in groups that together cost least.

    cost: of a group, by its size and its largest length. Groups go from short to long. Dynamic
    programming over the distinct lengths, of which there are few.
    """
    alike = [list(same) for _, same in groupby(by_length(lengths), key=lengths.__getitem__)]
    best, cut = [0], [0]  # least cost of the first of these, and where their last group begins
    for end in range(1, len(alike) + 1):
        longest, size, options = lengths[alike[end - 1][0]], 0, []
        for start in range(end - 1, -1, -1):
            size += len(alike[start])
            options.append((best[start] + cost(size, longest), start))
        least, start = min(options)
        best.append(least)
        cut.append(start)
    groups: list[list[int]] = []
    end = len(alike)
    while end:
        groups.append([i for same in alike[cut[end] : end] for i in same])
        end = cut[end]
    return groups[::-1]


def in_batches(
    work: Callable[[list[int]], Sequence[_T]], groups: Iterable[list[int]], size: int
) -> list[_T]:
    """What `work` gives for each row, in the order of the rows.

    groups: all row numbers, once. `work` gets those of one group at a time, at most `size`, in
    their order, and returns one result for each.
    """
    results: dict[int, _T] = {}
    for group in groups:
        for start in range(0, len(group), size):
            rows = group[start : start + size]
            results.update(zip(rows, work(rows), strict=True))
    return [results[row] for row in range(len(results))]


def by_length(lengths: Sequence[int]) -> list[int]:
    """Numbers of the rows from short to long: neighbours need little padding."""
    return sorted(range(len(lengths)), key=lengths.__getitem__)


def left_pad(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack (T_i, ...) tensors to (B, T, ...), zeros in front; with the mask (B, T), 1 = real."""
    length = max(len(row) for row in rows)
    padded = rows[0].new_zeros(len(rows), length, *rows[0].shape[1:])
    mask = torch.zeros(len(rows), length, dtype=torch.int64, device=rows[0].device)
    for i, row in enumerate(rows):
        padded[i, length - len(row) :] = row
        mask[i, length - len(row) :] = 1
    return padded, mask


def token_positions(mask: Tensor) -> Tensor:
    """Positions of the tokens of left-padded rows, int64, from the mask (B, T); 0 for padding."""
    return (mask.cumsum(dim=-1) - 1).clamp_(min=0)
