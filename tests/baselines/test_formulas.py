"""Losses, and rules that `plain` does not recompute, on cases computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from tide.baselines.artefacts import Head
from tide.baselines.attention import reverse, steer
from tide.baselines.gedi import guide
from tide.baselines.pplm import step_down
from tide.baselines.prefixes import cumulative_error, prefix_loss, rewards
from tide.baselines.sasa import margins, shifts
from tide.baselines.unlearning import fifths, outcome_error, unlearning_loss
from tide.baselines.word_filter import word_odds

INF = math.inf


def test_rad_rewards() -> None:
    toxicity = tensor([[0.2, 1.4, -0.1, 0.6], [0.3, 0.3, 0.3, 0.3]])
    scores = torch.zeros(2, 4)
    clamped = rewards(toxicity, scores, "clamp")
    assert clamped[0].tolist() == pytest.approx([0.8, 0.0, 1.0, 0.4])
    assert rewards(toxicity, scores, "minmax")[1].tolist() == [0.5] * 4
    # A candidate that top-p dropped is neither minimum nor maximum.
    scores[0, 1] = -INF
    scaled = rewards(toxicity, scores, "minmax")[0, [0, 2, 3]]
    assert scaled.tolist() == pytest.approx([4 / 7, 1.0, 0.0])
    # A reward of 0.5 for each candidate would hide a broken reward model.
    broken = tensor([[0.2, math.nan, 0.1]])
    assert rewards(broken, torch.zeros(1, 3), "minmax").isnan().any()


def test_rad_loss() -> None:
    """A text of 2 tokens: (1 * 0.25 + 2 * 1) / 3; one of 3: (1 * 1 + 2 * 0 + 3 * 4) / 6."""
    predicted, labels = tensor([[0.5, 0.0, 7.0], [1.0, 0.0, 2.0]]), tensor([1.0, 0.0])
    got = cumulative_error(predicted, labels, tensor([2, 3]))
    assert float(got) == pytest.approx((0.75 + 13 / 6) / 2)


def test_sasa_softmax_ignores_dropped_candidates() -> None:
    hidden = tensor([[[2.0, 1.0], [0.0, 1.0], [5.0, 5.0]]])
    margin = margins(hidden, tensor([0.6, 0.8]), tensor([1.0, 1.0]))
    scores = tensor([[0.0, 0.0, -INF]])
    low = 1 / (1 + math.exp(1.2))
    assert shifts(margin, scores, "softmax")[0].tolist() == pytest.approx([1 - low, low, 0.0])


def test_destein_steers_and_keeps_the_length() -> None:
    """(6, 8) has the direction (0.6, 0.8); less half of (1, 0): (0.1, 0.8), scaled to norm 10."""
    got = steer(tensor([6.0, 8.0]), tensor([3.0, 0.0]), 0.5)
    length = math.hypot(0.1, 0.8)
    assert got.tolist() == pytest.approx([1 / length, 8 / length], rel=1e-5)
    # A vector of zeros has no direction, and stays.
    assert steer(tensor([0.0, 0.0]), tensor([3.0, 0.0]), 0.5).tolist() == [0.0, 0.0]


def test_reversal_moves_a_head_and_keeps_the_length() -> None:
    """One head of size 2: v = (3, 4), delta = (0, 3), cosine of v and the end (0, 1) = 0.8.

    Step: (1 + 3)^0.4 * (1 + 0.8)^0.6 * (0, 3); then scaled back to length 5.
    """
    got = reverse(tensor([[[3.0, 4.0]]]), tensor([[[0.0, 3.0]]]), tensor([[0.0, 1.0]]), 1.0)
    moved = 4 - 3 * 4**0.4 * 1.8**0.6
    length = math.hypot(3.0, moved)
    assert got.flatten().tolist() == pytest.approx([15 / length, 5 * moved / length], rel=1e-5)


def guided(scores: torch.Tensor, clean: torch.Tensor, omega: float = 1.0) -> list[float]:
    """The scores that `guide` returns, without the bias of 2 on the odds of a clean text."""
    guided_scores: list[float] = guide(scores[None], clean.logit()[None] - 2, omega)[0].tolist()
    return guided_scores


def test_gedi_guide() -> None:
    """P = (0.5, 0.3, 0.2), biased P(clean) = (0.2, 0.5, 0.9): the products are 0.1, 0.15, 0.18.

    Normalised and summed from the least clean on: 0.233, 0.581, 1. The first two are below 0.8,
    and their P(clean) without the bias is below 0.8, too.
    """
    scores, clean = tensor([0.5, 0.3, 0.2]).log(), tensor([0.2, 0.5, 0.9])
    assert guided(scores, clean) == pytest.approx([-INF, -INF, math.log(0.18)])
    # A token that is clean enough (without the bias) stays, however little mass is before it.
    sure = tensor([0.2, 0.97, 0.98])
    expected = [-INF, math.log(0.3 * 0.97), math.log(0.2 * 0.98)]
    assert guided(scores, sure) == pytest.approx(expected)
    # Below omega 1 the filter is weaker: 0.2 * 0.8 is less than the mass of the first token.
    assert all(map(math.isfinite, guided(scores, clean, omega=0.2)))
    # The cleanest token of all may have been left out by top-k or top-p.
    left = guided(tensor([1.0, 0.5, -INF, -INF]), tensor([0.1, 0.2, 0.9, 0.99]))
    assert [math.isfinite(score) for score in left] == [False, True, False, False]


def test_word_filter_log_odds() -> None:
    """Counts texts with the word, not occurrences, plus 5: (5 + 5) / (0 + 5) for rain."""
    got = word_odds(["Rain rain"] * 5 + ["A fine day"], ["a DAY"])
    assert got == pytest.approx({"rain": math.log(2), "a": 0, "fine": math.log(6 / 5), "day": 0})
    assert list(got) == ["a", "day", "fine", "rain"]


def test_fudge_loss() -> None:
    """Log 3 is P = 0.75: -log 0.75 twice (a clean text), -log 0.25 once (a toxic one)."""
    third = math.log(3)
    logits = tensor([[9.0, third, third], [third, 9.0, 9.0]])
    got = prefix_loss(logits, tensor([1.0, 0.0]), tensor([1, 0]), tensor([3, 1]))
    assert float(got) == pytest.approx((2 * math.log(4 / 3) + math.log(4)) / 3)


def test_rectification_error() -> None:
    """One toxic text, whose last two tokens, 1 and 0, were written with Q of -0.5 and -0.25."""
    q = torch.zeros(1, 4, 2)
    q[0, 1, 1], q[0, 2, 0] = -0.5, -0.25
    ids = tensor([[0, 0, 1, 0]])
    got = outcome_error(q, ids, tensor([1.0]), tensor([2]), tensor([4]))
    assert float(got) == pytest.approx((0.25 + 0.5625) / 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_pplm_stands_still_without_a_gradient(dtype: torch.dtype) -> None:
    """The gradient of a sure classifier underflows to 0 in half precision."""
    cache = [torch.ones(2, 1, 3, 4, dtype=dtype) for _ in range(2)]
    gradients = [torch.zeros_like(cache[0]), torch.zeros_like(cache[1])]
    gradients[0][1, 0, 0, 0] = 1.0
    first, second = step_down(cache, gradients, 0.5)
    assert torch.equal(first[0], cache[0][0])
    assert torch.equal(second, cache[1])
    assert first[1, 0, 0, 0] == 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_head_is_in_float32_behind_any_model(dtype: torch.dtype) -> None:
    head = Head(4, 2, torch.device("cpu"))
    assert head(torch.ones(3, 4, dtype=dtype)).dtype is head.weight.dtype is torch.float32


def test_quark_fifths() -> None:
    assert fifths([0.9, 0.1, 0.3, 0.2, 0.1]) == [4, 0, 3, 2, 1]
    assert fifths([0.5] * 10) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_quark_loss() -> None:
    """P = (0.5, 0.5), before (0.75, 0.25): -log 0.5 + 0.05 * 0.5 log(4 / 3) - 0.06 * log 2."""
    got = unlearning_loss(torch.zeros(1, 2), tensor([[0.75, 0.25]]).log(), tensor([1]))
    expected = math.log(2) + 0.05 * 0.5 * math.log(4 / 3) - 0.06 * math.log(2)
    assert float(got) == pytest.approx(expected)
