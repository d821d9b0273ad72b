from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.local.batch import Row
from tide.engines.local.sampler import _MANY, _REACH, Sampler, gumbel_noise, noise_keys


def noise(seeds: Sequence[int], vocabulary: int, steps: int = 1) -> np.ndarray:
    """Shape (steps, seeds, vocabulary)."""
    tokens = torch.arange(vocabulary, dtype=torch.int32)
    keys = [list(islice(noise_keys(seed), steps)) for seed in seeds]
    pairs = torch.tensor(keys, dtype=torch.int32).permute(1, 2, 0)
    return gumbel_noise(pairs[..., None], tokens).numpy()


def row_of(sampling: Sampling, seed: int, banned: Sequence[int] = ()) -> Row:
    request = Request((), sampling, seed, banned_token_ids=tuple(banned))
    return Row(request, torch.empty(0), [seed, 7])


def sampler_of(sampling: Sampling, seeds: Sequence[int]) -> Sampler:
    sampler = Sampler(torch.empty(0, dtype=torch.int64))
    sampler.enter([row_of(sampling, seed) for seed in seeds])
    return sampler


def draw(
    sampling: Sampling, seeds: Sequence[int], logits: torch.Tensor, step: int = 0
) -> torch.Tensor:
    """The tokens of step `step`, after steps with the same logits."""
    sampler = sampler_of(sampling, seeds)
    for _ in range(step + 1):
        tokens, finite = sampler.draw(sampler.warp(sampler.prepare(logits)))
    assert finite.all()
    return tokens


def test_noise_is_gumbel_over_tokens_seeds_and_steps() -> None:
    assert stats.kstest(noise([5], 100_000).ravel(), "gumbel_r").pvalue > 0.001
    assert stats.kstest(noise(list(range(8_000)), 3)[0, :, 2], "gumbel_r").pvalue > 0.001
    assert stats.kstest(noise([9], 2, steps=8_000)[:, 0, 1], "gumbel_r").pvalue > 0.001


def test_noise_of_neighbouring_seeds_steps_and_tokens_is_uncorrelated() -> None:
    a = noise([0, 1, 2**62], 50_000, steps=2)
    pairs = [(a[0, 0], a[0, 1]), (a[0, 0], a[0, 2]), (a[0, 0], a[1, 0])]
    pairs.append((a[0, 0, :-1], a[0, 0, 1:]))
    for x, y in pairs:
        assert abs(np.corrcoef(x, y)[0, 1]) < 0.02


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5])
    count = 8_000
    sampling = Sampling(temperature=temperature, max_new_tokens=1)
    drawn = torch.bincount(draw(sampling, range(count), logits.expand(count, -1)), minlength=5)
    expected = (logits.double() / temperature).softmax(-1) * count
    assert stats.chisquare(drawn.numpy(), expected.numpy()).pvalue > 0.001


@pytest.mark.parametrize("top_k", [0, 1, 50, 999])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.01])
def test_filters_are_those_of_transformers(top_k: int, top_p: float) -> None:
    """The nucleus is taken of what top-k left."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits = 2 * torch.randn(16, 200, generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.0, top_k=top_k, top_p=top_p)
    ids = torch.zeros(16, 1, dtype=torch.long)
    expected = TopKLogitsWarper(top_k)(ids, logits) if top_k else logits
    expected = TopPLogitsWarper(top_p)(ids, expected)
    assert torch.equal(sampler_of(sampling, range(16)).warp(logits), expected)


def test_each_step_has_noise_of_its_own() -> None:
    """Also after the keys that are made at once, and if the size of the vocabulary changes."""
    seeds = [4, 7]
    sampler = sampler_of(Sampling(temperature=1.0, max_new_tokens=99), seeds)
    for step in range(70):
        vocabulary = 30 if step % 9 == 8 else 50
        expected = torch.tensor(noise(seeds, vocabulary, 70)[step].argmax(-1))
        assert torch.equal(sampler.draw(torch.zeros(2, vocabulary))[0], expected)


@given(st.floats(0.02, 2.0), st.integers(0, 2**31), st.booleans())
@settings(max_examples=25, deadline=None)
def test_noise_for_tokens_within_reach_alone_changes_nothing(
    temperature: float, seed: int, shared: bool
) -> None:
    """Large batches first look for the tokens that can win; small ones do not."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(40, 2048, generator=generator)
    seeds = [seed + i // (2 if shared else 1) for i in range(40)]
    sampling = Sampling(temperature=temperature, max_new_tokens=2)
    together = draw(sampling, seeds, logits, 1)
    assert logits.numel() >= _MANY > logits[0].numel()
    alone = [int(draw(sampling, [s], logits[i : i + 1], 1)) for i, s in enumerate(seeds)]
    assert together.tolist() == alone


def test_the_reach_covers_the_noise() -> None:
    """The noise of the least and of the greatest uniform value of 23 bits that the hash gives."""
    least, greatest = torch.tensor([0.5, 2**23 - 0.5]).mul(2.0**-23).log().neg().log().neg()
    assert float(greatest - least) < _REACH


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.7, 1.9]),
    "top_k": st.sampled_from([0, 0, 3]),
    "top_p": st.sampled_from([1.0, 0.9]),
    "min_new_tokens": st.sampled_from([0, 0, 2, 5]),
    "repetition_penalty": st.sampled_from([1.0, 1.0, 1.5, 0.7]),
    "max_new_tokens": st.integers(6, 20),
}
ROW = st.tuples(
    st.builds(Sampling, **OPTIONS), st.integers(0, 3), st.lists(st.integers(0, 11), max_size=3)
)
# One step: places of the rows that leave, and rows that enter.
STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 4), max_size=2), st.lists(ROW, max_size=3)),
    min_size=1,
    max_size=7,
)


@given(STEPS, st.sampled_from([13, 9000]))
@settings(max_examples=30, deadline=None)
def test_rows_enter_and_leave_at_any_step(
    steps: list[tuple[set[int], list[Any]]], vocabulary: int
) -> None:
    """Each row draws the same as alone: its penalties, lengths and noise stay with it."""
    stops = torch.tensor([4])
    sampler = Sampler(stops)
    # Each row twice, for the common sampler and for one of its own.
    rows: list[tuple[Row, Row, Sampler]] = []
    generator = torch.Generator().manual_seed(0)
    for leaving, entering in steps:
        order = [i for i in range(len(rows)) if i not in leaving][::-1]
        sampler.keep(order)
        rows = [rows[i] for i in order]
        for row in entering:
            together, single, alone = row_of(*row), row_of(*row), Sampler(stops)
            alone.enter([single])
            rows.append((together, single, alone))
        sampler.enter([together for together, *_ in rows[len(order) :]])
        if not rows:
            continue
        logits = 3 * torch.randn(len(rows), vocabulary, generator=generator)
        expected = [
            int(alone.draw(alone.warp(alone.prepare(row_logits[None].clone())))[0])
            for (*_, alone), row_logits in zip(rows, logits, strict=True)
        ]
        drawn = sampler.draw(sampler.warp(sampler.prepare(logits)))[0].tolist()
        assert drawn == expected
        for token, (together, single, _) in zip(drawn, rows, strict=True):
            assert token not in together.request.banned_token_ids
            together.ids.append(token)
            single.ids.append(token)


@pytest.mark.parametrize("width", [7, 2 * _MANY])  # a sampler draws in two ways
@pytest.mark.parametrize("bad", [math.nan, math.inf, "all masked"])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 3}, {"top_k": 3, "top_p": 0.5}]
)
def test_draw_reports_spoilt_scores(
    width: int, bad: float | str, options: dict[str, float]
) -> None:
    """NaN or infinity at one token, or all tokens masked; not some tokens masked."""
    scores = torch.linspace(-1, 1, width).repeat(2, 1)
    scores[:, ::3] = -torch.inf
    scores[1, slice(None) if bad == "all masked" else 4] = -math.inf if bad == "all masked" else bad
    sampling = Sampling(**{"temperature": 1.0, **options})
    for warps in (True, False):
        sampler = sampler_of(sampling, [0, 1])
        drawn = sampler.draw(sampler.warp(scores.clone()) if warps else scores)
        assert drawn[1].tolist() == [True, False]
