from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.engines.local.padding import in_batches, length_groups, reading_cost, writing_cost

Cost = Callable[[int, int], int]


def total(lengths: list[int], groups: list[list[int]], cost: Cost) -> int:
    return sum(cost(len(group), max(lengths[i] for i in group)) for group in groups)


def least_cost(lengths: list[int], cost: Cost) -> int:
    """By trying every way to cut the sorted lengths."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    inner = range(1, len(order))
    return min(
        total(
            lengths,
            [order[a:b] for a, b in zip((0, *cut), (*cut, len(order)), strict=True)],
            cost,
        )
        for size in range(len(order))
        for cut in combinations(inner, size)
    )


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=8),
    st.sampled_from([reading_cost, writing_cost]),
)
def test_every_index_once_at_the_least_cost(lengths: list[int], cost: Cost) -> None:
    groups = length_groups(lengths, cost)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert total(lengths, groups, cost) == least_cost(lengths, cost)


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [([], []), ([7, 7, 7], [[0, 1, 2]]), ([300, 5, 300, 6], [[1, 3], [0, 2]])],
)
def test_examples(lengths: list[int], groups: list[list[int]]) -> None:
    assert length_groups(lengths) == groups


def test_a_long_text_does_not_hold_up_many_short_ones() -> None:
    """A few of nearly the same length are not worth steps of their own."""
    assert length_groups([20] * 60 + [200], writing_cost) == [list(range(60)), [60]]
    assert length_groups([20, 24, 22, 20], writing_cost) == [[0, 3, 2, 1]]


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 6))
def test_batches_give_every_row_its_own_result(lengths: list[int], size: int) -> None:
    seen: list[int] = []

    def work(rows: list[int]) -> list[int]:
        seen.append(len(rows))
        return [10 * row for row in rows]

    groups = length_groups(lengths)
    assert in_batches(work, groups, size) == [10 * row for row in range(len(lengths))]
    assert len(seen) == sum(-(-len(group) // size) for group in groups)
    assert max(seen, default=0) <= size
