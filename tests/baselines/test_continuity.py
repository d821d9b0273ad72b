"""A strength that goes to nothing takes the effect with it: no jump between it and the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.baselines.conftest import World
from tests.baselines.stand_ins import STRENGTHS
from tide.baselines import REGISTRY
from tide.baselines.common.decoding import DecodingBaseline
from tide.config import Sampling
from tide.engines.local.sampling import Sampler
from tide.specs import format_spec, parse_spec

PROMPTS = ["The weather", "Rain fell on the quiet town", "is fine is fine"]
SAMPLING = Sampling(temperature=0.8, max_new_tokens=2)
# Beside the settings of the others' tests: rules that differ, and every filter.
MORE = ("destein:alpha=0.4,rule=heads",)


def at(spec: str, strength: float) -> str:
    name, options = parse_spec(spec, "baseline")
    return format_spec(
        name, {**options, REGISTRY.load(name).options_class.strength: f"{strength:g}"}
    )


@torch.inference_mode()
def distribution(world: World, spec: str) -> tuple[Tensor, Tensor]:
    """Log-probabilities of each prompt's next token and of the one after it, and the model's."""
    baseline = world.load(spec)
    assert isinstance(baseline, DecodingBaseline)
    ids, drawn = world.engine.tokenize(PROMPTS), []
    sampler = Sampler([SAMPLING] * len(ids), range(len(ids)), torch.device("cpu"), prompts=ids)
    shifts_first = getattr(baseline._options, "order", "") == "shift-warp"
    with baseline.attached():
        writing = baseline.start(PROMPTS, ids, 2)
        for step in range(2):
            if step:
                writing.advance(torch.tensor([5, 6, 7]))
            own = writing.logits.float().clone()
            if shifts_first:
                scores = sampler.warp(writing.shift(own))
            else:
                scores = writing.shift(sampler.warp(own))
            # A candidate that is read can only be gone on with if it was drawn.
            drawn.append(scores.log_softmax(dim=-1))
            if hasattr(writing, "_ids"):
                break
    return torch.stack(drawn), own


@pytest.mark.parametrize("spec", [*STRENGTHS.values(), *MORE])
def test_it_is(world: World, spec: str) -> None:
    pass
