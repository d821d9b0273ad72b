from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.worlds import scripted_engine
from tide.engines.remote.protocol import PROBES, FirstToken, difference

DIM = 64
BY_IDS = [(5, -0.5), (9, -1.0)]
OTHER = [(6, -3.0), (7, -2.0)]


def compared(*answers: list[FirstToken]) -> tuple[str | None, list[Sequence[Any]]]:
    """The finding on a vLLM with these answers, and the prompts that it was sent."""
    left, sent = list(answers), []

    async def first(prompts: Sequence[Any]) -> list[FirstToken]:
        sent.append(prompts)
        return left.pop(0)

    return asyncio.run(difference(scripted_engine(dim=DIM), first)), sent


def test_probes_are_sent_as_ids_and_with_each_scaling() -> None:
    _, (ids, rows) = compared(BY_IDS, BY_IDS * 3)
    engine = scripted_engine(dim=DIM)
    assert ids == engine.tokenize(PROBES)
    plain = engine.embed(PROBES)
    assert len(rows) == 3 * len(PROBES)
    for number, row in enumerate(rows):
        probe, factor = plain[number % len(PROBES)], (1, 8, 1 / 8)[number // len(PROBES)]
        assert torch.equal(row, factor * probe)


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (BY_IDS, None),
        ([(5, -0.6), (9, -0.9)], None),  # half precision
        ([(5, -0.5), (8, -1.03)], None),  # another token that is about as likely
        ([(5, -0.5), (8, -1.2)], "another model"),
        ([(5, -0.5), (9, -2.0)], "another model"),
        ([(5, -0.5), (9, math.nan)], "another model"),
    ],
)
def test_what_counts_as_the_same(plain: list[FirstToken], problem: str | None) -> None:
    found, _ = compared(BY_IDS, [*plain, *OTHER, *OTHER])
    assert (found is None) if problem is None else (problem in str(found))


def test_a_scaling_is_named() -> None:
    found, _ = compared(BY_IDS, [*OTHER, *BY_IDS, *OTHER])
    assert "multiplied by 8;" in str(found)
