from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from tests.models import CONFIGS
from tide.engines.local import packed_weights

needs_bfloat16 = pytest.mark.skipif(
    not packed_weights.multiplies_bfloat16(), reason="this CPU has no instructions for bfloat16"
)


def is_packed(module: nn.Module) -> bool:
    return "forward" in vars(module)


@pytest.mark.skipif(not packed_weights._can_pack(), reason="no packed multiplication here")
def test_a_layer_whose_packed_result_is_wrong_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed_weights._packed
    monkeypatch.setattr(packed_weights, "_packed", lambda w, b: lambda x: 1.001 * right(w, b)(x))
    wrong = nn.Linear(48, 80).requires_grad_(False)
    packed_weights.pack(wrong)
    assert not is_packed(wrong)

    def fails(weight: torch.Tensor, bias: torch.Tensor) -> None:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(packed_weights, "_packed", fails)
    packed_weights.pack(wrong)
    assert not is_packed(wrong)


class Scaled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("model", "native", "most"),
    [
        *((module, True, 10**6) for module in (Scaled(4, 4), nn.LayerNorm(4), nn.Embedding(4, 4))),
        (nn.Linear(4, 4, dtype=torch.float16), True, 10**6),
        (nn.Linear(4, 4, dtype=torch.bfloat16), False, 10**6),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.bfloat16)), True, 10**6),
        (nn.Linear(4, 4), True, 19),
    ],
)
def test_what_is_unknown_slow_mixed_or_large_is_left_alone(
    model: nn.Module, native: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "multiplies_bfloat16", lambda: native)
    monkeypatch.setattr(packed_weights, "MAX_PARAMETERS", most)
    packed_weights.speed_up(model)
    assert not any(map(is_packed, model.modules()))


@pytest.mark.parametrize("kind", list(CONFIGS))
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_a_sped_up_model_computes_the_same(kind: str, dtype: str) -> None:
    """Sums are in float32 and rounded once. GPT-2 also gets a fused activation."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # in a new model, all are zero
    model, ids = model.to(getattr(torch, dtype)), torch.randint(0, 300, (5, 60))
    exact, before = copy.deepcopy(model).float()(ids).logits, model(ids).logits
    names = list(model.state_dict())
    packed_weights.speed_up(model)
    assert list(model.state_dict()) == names
    layers = [module for module in model.modules() if type(module) in (nn.Linear, Conv1D)]
    assert {is_packed(layer) for layer in layers} == {packed_weights._can_pack()}
    fused = [module for module in model.modules() if type(module) is NewGELUActivation]
    assert all(map(is_packed, fused))
    assert bool(fused) == (kind == "gpt2")
    after = model(ids).logits
    if dtype == "float32":
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert (after - exact).norm() <= 1.1 * (before - exact).norm() + 1e-4
