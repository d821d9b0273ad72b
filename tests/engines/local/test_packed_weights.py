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

needs_packing = pytest.mark.skipif(
    not packed_weights._can_pack(), reason="this torch has no packed multiplication here"
)
needs_bfloat16 = pytest.mark.skipif(
    not packed_weights.multiplies_bfloat16(), reason="this CPU has no instructions for bfloat16"
)


def layer(kind: str, bias: bool) -> nn.Module:
    torch.manual_seed(0)
    built = nn.Linear(48, 80, bias=bias) if kind == "linear" else Conv1D(80, 48)
    if bias:
        nn.init.normal_(built.bias)
    return built.requires_grad_(False)


def is_packed(module: nn.Module) -> bool:
    return "forward" in vars(module)


@needs_packing
@pytest.mark.parametrize(("kind", "bias"), [("linear", True), ("linear", False), ("conv1d", True)])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_a_packed_layer_computes_in_float32_and_rounds_once(
    kind: str, bias: bool, dtype: str
) -> None:
    plain = layer(kind, bias).to(getattr(torch, dtype))
    exact = copy.deepcopy(plain).float()
    packed_weights.pack(plain)
    assert is_packed(plain)
    for shape in ((1, 48), (3, 48), (64, 48), (257, 48), (5, 7, 48)):
        x = torch.randn(shape).to(plain.weight.dtype)
        rounding = 1e-5 if dtype == "float32" else 2**-8
        assert plain(x).dtype == x.dtype
        torch.testing.assert_close(plain(x).float(), exact(x.float()), rtol=rounding, atol=1e-5)


@needs_packing
def test_a_layer_whose_packed_result_is_wrong_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed_weights._packed
    monkeypatch.setattr(packed_weights, "_packed", lambda w, b: lambda x: 1.001 * right(w, b)(x))
    wrong = layer("linear", True)
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
    """GPT-2 also gets a fused activation."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval().requires_grad_(False)
    model, ids = model.to(getattr(torch, dtype)), torch.randint(0, 300, (3, 11))
    exact, before = copy.deepcopy(model).float()(ids).logits, model(ids).logits
    names = list(model.state_dict())
    packed_weights.speed_up(model)
    assert list(model.state_dict()) == names
    assert is_packed(model.get_output_embeddings()) == packed_weights._can_pack()
    fused = [module for module in model.modules() if type(module) is NewGELUActivation]
    assert all(map(is_packed, fused))
    assert bool(fused) == (kind == "gpt2")
    after = model(ids).logits
    if dtype == "float32":
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert (after - exact).norm() <= 1.1 * (before - exact).norm() + 1e-4
