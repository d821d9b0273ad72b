from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM
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
    made = nn.Linear(48, 80, bias=bias) if kind == "linear" else Conv1D(80, 48)
    if bias:
        nn.init.normal_(made.bias)
    return made.requires_grad_(False)


def is_packed(module: nn.Module) -> bool:
    return "forward" in vars(module)


@needs_packing
@pytest.mark.parametrize(("kind", "bias"), [("linear", True), ("linear", False), ("conv1d", True)])
def test_packed_layers_equal_plain_ones(kind: str, bias: bool) -> None:
    plain = layer(kind, bias)
    packed = copy.deepcopy(plain)
    assert packed_weights.pack(packed)
    assert is_packed(packed)
    for rows in (1, 2, 3, 9, 64, 257, 1600):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(packed(x), packed(x))
    for x in (torch.randn(5, 7, 48), torch.randn(3, 48, 4).transpose(1, 2)):
        torch.testing.assert_close(packed(x), plain(x.contiguous()), rtol=1e-5, atol=1e-5)


@needs_packing
@needs_bfloat16
@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_packed_bfloat16_is_rounded_once(kind: str) -> None:
    """Sums are float32: the result is that of float32 arithmetic, rounded at the end."""
    half = layer(kind, bias=True).to(torch.bfloat16)
    exact = copy.deepcopy(half).float()
    assert packed_weights.pack(half)
    for rows in (1, 9, 257):
        x = torch.randn(rows, 48).to(torch.bfloat16)
        result = half(x)
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.float(), exact(x.float()), rtol=2**-8, atol=1e-5)


@needs_packing
def test_a_layer_whose_packed_result_is_wrong_stays_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed_weights._packed
    monkeypatch.setattr(packed_weights, "_packed", lambda w, b: lambda x: 1.001 * right(w, b)(x))
    wrong = layer("linear", True)
    assert not packed_weights.pack(wrong)
    assert not is_packed(wrong)

    def fails(weight: torch.Tensor, bias: torch.Tensor) -> None:
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(packed_weights, "_packed", fails)
    assert not packed_weights.pack(wrong)


def test_other_layers_stay_as_they_are() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    for module in (Scaled(4, 4), nn.LayerNorm(4), nn.Embedding(4, 4)):
        assert not packed_weights.pack(module)
        assert not is_packed(module)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_a_sped_up_model_computes_the_same(kind: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval().requires_grad_(False)
    ids = torch.randint(0, 300, (3, 11))
    before, names = model(ids).logits, list(model.state_dict())
    packed_weights.speed_up(model)
    torch.testing.assert_close(model(ids).logits, before, rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == names
    if packed_weights._can_pack():
        assert is_packed(model.get_output_embeddings())


@needs_packing
@needs_bfloat16
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_a_sped_up_bfloat16_model_is_as_near_to_float32(kind: str) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval().requires_grad_(False)
    model = model.to(torch.bfloat16)
    ids = torch.randint(0, 300, (8, 11))
    exact, before = copy.deepcopy(model).float()(ids).logits, model(ids).logits
    packed_weights.speed_up(model)
    assert is_packed(model.get_output_embeddings())
    after = model(ids).logits
    assert (after - exact).norm() <= 1.1 * (before - exact).norm()


@pytest.mark.parametrize("native", [True, False])
def test_what_is_slow_or_mixed_is_left_alone(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(packed_weights, "multiplies_bfloat16", lambda: native)
    kinds = [[torch.float16] * 2, [torch.float32, torch.bfloat16]]
    for first, second in kinds if native else [*kinds, [torch.bfloat16] * 2]:
        model = nn.Sequential(nn.Linear(4, 4, dtype=first), nn.Linear(4, 4, dtype=second))
        packed_weights.speed_up(model)
        assert not any(is_packed(module) for module in model)


def test_large_models_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_weights, "MAX_PARAMETERS", 19)
    large = nn.Sequential(nn.Linear(4, 4))
    packed_weights.speed_up(large)
    assert not is_packed(large[0])


def test_caches_of_shapes_are_kept_small(monkeypatch: pytest.MonkeyPatch) -> None:
    small, chosen = packed_weights._CACHES
    # Set first, so that monkeypatch takes both back at the end.
    monkeypatch.setenv(small, "")
    monkeypatch.delenv(small)
    monkeypatch.setenv(chosen, "7")
    packed_weights.speed_up(nn.Linear(4, 4))
    assert int(os.environ[small]) == packed_weights._CACHES[small]
    assert os.environ[chosen] == "7"  # what somebody set stays
