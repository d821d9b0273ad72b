from __future__ import annotations

import math

import pytest
import torch

from tide.engines.remote.protocol import difference, scaled_probes

DIM = 64
BY_IDS = [(5, -0.5), (9, -1.0)]
OTHER = [(6, -3.0), (7, -2.0)]


def test_probes_come_with_each_scaling() -> None:
    x = torch.ones(3, DIM)
    found = scaled_probes([x, 2 * x])
    assert [float(probe[0, 0]) for probe in found] == [1, 2, 8, 16, 1 / 8, 2 / 8]


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (BY_IDS, None),
        ([(5, -0.6), (9, -0.9)], None),  # half precision
        ([(5, -0.5), (8, -1.03)], None),  # two tokens that were as likely
        ([(5, -0.5), (8, -1.2)], "another model"),
        ([(5, -0.5), (9, -2.0)], "another model"),
        ([(5, -0.5), (9, math.nan)], "another model"),
    ],
)
def test_what_counts_as_the_same(plain: list[tuple[int, float]], problem: str | None) -> None:
    found = difference(BY_IDS, [*plain, *OTHER, *OTHER], DIM)
    assert (found is None) if problem is None else (problem in str(found))


def test_a_scaling_is_named() -> None:
    found = difference(BY_IDS, [*OTHER, *BY_IDS, *OTHER], DIM)
    assert "multiplied by 8:" in str(found)
