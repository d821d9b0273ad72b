"""Strengths: their effect begins at nothing, extreme ones are refused, all others write a text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from tests.baselines.conftest import with_nightly
from tests.baselines.plain import STRENGTHS, World, at
from tests.models import ending_with
from tide.baselines import REGISTRY
from tide.baselines.base import FitSettings
from tide.core.errors import InputError, validated
from tide.core.settings import Sampling
from tide.engines.local.sampler import Sampler

PROMPTS = ["The weather", "Rain fell on the quiet town", "is fine is fine"]
STEPS = 4
# Without top-p, because the edge of a nucleus is a jump, too.
SAMPLING = Sampling(temperature=0.8, max_new_tokens=STEPS)
SMALL = 1e-4
# Rules and filters that are not the default.
MORE = [
    "rad:beta=20,candidates=8,normalize=clamp",
    "sasa:beta=30,candidates=8,normalize=softmax,labels=any",
]


def drawn_from(
    world: World, monkeypatch: pytest.MonkeyPatch, spec: str, forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities that each token was drawn from, (steps * prompts, V), and the tokens.

    forced: tokens to draw, (steps, prompts), whatever their scores; without it the likeliest.
    """
    scores: list[Tensor] = []
    tokens: list[Tensor] = []

    def draw(self: Sampler, raw: Tensor) -> tuple[Tensor, Tensor]:
        scores.append(raw.log_softmax(dim=-1))
        tokens.append(raw.argmax(dim=-1) if forced is None else forced[len(tokens)])
        return tokens[-1], raw.amax(dim=-1).isfinite()

    with monkeypatch.context() as patch, ending_with(world.engine):
        patch.setattr(Sampler, "draw", draw)
        world.load(spec).generate(PROMPTS, SAMPLING, [0, 1, 2])
    return torch.cat(scores), torch.stack(tokens)


def divergence(scores: Tensor, other: Tensor) -> float:
    """The largest KL divergence of `scores` from `other` among the draws, in nats."""
    apart = kl_div(other, scores, log_target=True, reduction="none")
    return float(apart.masked_fill(scores == -torch.inf, 0.0).sum(dim=-1).max())


@pytest.mark.parametrize("world", with_nightly("gpt2"), indirect=True)
@pytest.mark.parametrize("spec", [*STRENGTHS.values(), *MORE])
def test_strength_near_zero_is_near_the_model(
    world: World, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    """At strength 0 a system draws from the model's distribution over its candidates."""
    model_scores, tokens = drawn_from(world, monkeypatch, "destein:alpha=0")
    off, same = drawn_from(world, monkeypatch, at(spec, 0))
    assert torch.equal(tokens, same)
    # There are few candidates at any strength, also at 0.
    kept = model_scores.masked_fill(off == -torch.inf, -torch.inf).log_softmax(dim=-1)
    assert divergence(off, kept) < 1e-5
    small, _ = drawn_from(world, monkeypatch, at(spec, SMALL), tokens)
    whole, _ = drawn_from(world, monkeypatch, spec)
    first = slice(len(PROMPTS))  # after different tokens the distributions differ anyway
    assert divergence(small, off) < 1e-5
    assert divergence(whole[first], off[first]) > 1e-3


OPTIONS = [
    (kind, name)
    for kind in STRENGTHS
    for name, field in REGISTRY.load(kind).options_class.model_fields.items()
    if field.annotation in (int, float)
]


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
def test_every_number_of_a_baseline_has_bounds(gpt2: World, kind: str, name: str) -> None:
    for written in ("1e5", "-1e-9", "nan", "1e400", "-inf", "text"):
        with pytest.raises(InputError, match=f"baseline {kind}: {name}: "):
            gpt2.load(f"{kind}:{name}={written}")


@pytest.mark.parametrize("name", FitSettings.model_fields)
def test_every_setting_of_a_fit_is_a_positive_number(name: str) -> None:
    for value in (-1, math.nan, "x"):
        with pytest.raises(InputError, match=name):
            validated(FitSettings, {name: value})
