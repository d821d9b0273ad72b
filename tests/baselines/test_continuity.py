"""The effect of every baseline goes to nothing with its strength, not only at none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.baselines.conftest import World
from tests.baselines.stand_ins import OFF
from tide.config import Sampling
from tide.engines.local.sampling import Sampler

PROMPTS = ["The weather", "Rain fell on the quiet town"]
SAMPLING = Sampling(temperature=0.7, max_new_tokens=4)


def drawn_from(world: World, spec: str, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Probabilities at every step, (steps, B, V)."""
    noted: list[Tensor] = []
    draw = Sampler.draw
    with monkeypatch.context() as patch:
        patch.setattr(
            Sampler,
            "draw",
            lambda self, scores, step: (noted.append(scores.clone()), draw(self, scores, step))[1],
        )
        world.load(spec).generate(PROMPTS, SAMPLING, [0, 1])
    return torch.stack(noted).softmax(dim=-1)


@pytest.mark.parametrize("name", sorted(OFF.keys() - {"destein"}))
def test_a_trace_of_strength_is_a_trace_of_effect(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = drawn_from(world, OFF[name], monkeypatch)
    trace = drawn_from(world, OFF[name].replace("=0", "=1e-6", 1), monkeypatch)
    assert float((trace - off).abs().max()) < 1e-3
