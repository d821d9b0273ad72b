from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from tide.engines.local.stream import length_groups


def total(lengths: list[int], groups: list[list[int]]) -> int:
    return sum(64 + len(group) * max(lengths[i] for i in group) for group in groups)


def least_cost(lengths: list[int]) -> int:
    """The cost of the best of all ways to cut the sorted lengths."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    inner = range(1, len(order))
    return min(
        total(lengths, [order[a:b] for a, b in zip((0, *cut), (*cut, len(order)), strict=True)])
        for size in range(len(order))
        for cut in combinations(inner, size)
    )


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_every_index_once_at_the_least_cost(lengths: list[int]) -> None:
    groups = length_groups(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert total(lengths, groups) == least_cost(lengths)
