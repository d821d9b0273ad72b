from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from tests.models import CONFIGS
from tide.engines.local.decode import Forward, Stream
from tide.engines.local.gpt2 import LeanGpt2, _passes, lean_gpt2
from tide.engines.local.packed_weights import speed_up


def gpt2(**config: object) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    settings = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 300}
    model = GPT2LMHeadModel(GPT2Config(**settings, **config)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # biases start at zero, norms at one
    return model


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_weights": False},
        {"activation_function": "relu", "n_inner": 50, "tie_word_embeddings": False},
        {"attn_implementation": "eager", "reorder_and_upcast_attn": True},
    ],
)
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_models_own(config: dict[str, object], padded: bool) -> None:
    model = gpt2(**config)
    lean_model = lean_gpt2(model)
    assert lean_model is not None
    mask = torch.ones(3, 12, dtype=torch.int64)
    if padded:
        mask[0, :4] = mask[2, :1] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ids = torch.randint(0, 300, (3, 12))
    seen = mask[:, :6] if padded else None
    first = model(
        ids[:, :6], attention_mask=mask[:, :6], position_ids=positions[:, :6], use_cache=True
    )
    ours = lean_model(seen, positions[:, :6], input_ids=ids[:, :6])
    real = mask[:, :6].bool()
    torch.testing.assert_close(ours.logits[real], first.logits[real], rtol=1e-4, atol=1e-5)
    kept = lean_model(
        seen, positions[:, :6], inputs_embeds=model.transformer.wte(ids[:, :6]), logits_to_keep=2
    )
    torch.testing.assert_close(kept.logits, ours.logits[:, -2:])
    own, lean = first.past_key_values, ours.past_key_values
    for i in range(6, 12):
        expected = model(
            ids[:, i : i + 1], attention_mask=mask[:, : i + 1],
            position_ids=positions[:, i : i + 1], past_key_values=own,
        ).logits[:, -1]  # fmt: skip
        got = lean_model(
            mask[:, : i + 1] if padded else None, positions[:, i : i + 1],
            input_ids=ids[:, i : i + 1], past_key_values=lean,
        ).logits[:, -1]  # fmt: skip
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 12, 1000])
def test_reads_prompts_one_behind_another(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In passes of a prompt, of some, or of all; then goes on from the cache."""
    monkeypatch.setattr("tide.engines.local.gpt2._PASS", size)
    model = gpt2()
    lean = lean_gpt2(model)
    assert lean is not None
    rows = [torch.randint(0, 300, (length,)) for length in (7, 2, 12, 2, 1, 7)]
    logits, cache = lean.read([model.transformer.wte(row) for row in rows], 1)
    expected = torch.stack([model(row[None]).logits[0, -1] for row in rows])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    next_tokens = torch.arange(6)
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(13) >= 12 - lengths[:, None]).long()
    out = lean(mask, lengths[:, None], input_ids=next_tokens[:, None], past_key_values=cache)
    longer = [torch.cat([row, token[None]]) for row, token in zip(rows, next_tokens, strict=True)]
    expected = torch.stack([model(row[None]).logits[0, -1] for row in longer])
    torch.testing.assert_close(out.logits[:, -1], expected, rtol=1e-4, atol=1e-5)


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=80))
def test_passes_hold_every_row_once_from_short_to_long(lengths: list[int]) -> None:
    passes = _passes(lengths)
    rows = [i for some in passes for i in some]
    assert sorted(rows) == list(range(len(lengths)))
    assert [lengths[i] for i in rows] == sorted(lengths)
    assert all(sum(lengths[i] for i in some) < 1024 + 400 for some in passes)


def test_a_reading_that_computes_something_else_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = LeanGpt2.read
    monkeypatch.setattr(
        LeanGpt2, "read", lambda self, rows, tokens: (1.01 * right(self, rows, tokens)[0], None)
    )
    assert lean_gpt2(gpt2()) is None


@torch.inference_mode()
def test_bfloat16_is_as_near_to_float32_as_the_models_own() -> None:
    """Prompts of mixed lengths, read apart, and the tokens after them."""
    half = gpt2().to(torch.bfloat16)
    exact, own = Forward(copy.deepcopy(half).float(), hooks=True), Forward(half, hooks=True)
    fast = copy.deepcopy(half)
    speed_up(fast)
    lean = Forward(fast)
    assert lean.lean is not None
    embeddings = [half.transformer.wte(torch.randint(0, 300, (n,))) for n in (9, 3, 12, 3)]
    streams = [
        Stream(exact, [x.float() for x in embeddings], 6),
        Stream(own, embeddings, 6),
        Stream(lean, embeddings, 6),
    ]
    logits = []
    for step in range(7):
        logits.append(torch.stack([stream.logits.float() for stream in streams]))
        for stream in streams if step < 6 else []:
            stream.advance(torch.arange(4) * 7 + step)
    right, before, after = torch.stack(logits, dim=1)
    assert (before - right).norm() > 0  # it did compute in bfloat16
    assert (after - right).norm() <= 1.1 * (before - right).norm()


def test_other_models_and_precisions_have_none() -> None:
    for kind in set(CONFIGS) - {"gpt2"}:
        assert lean_gpt2(AutoModelForCausalLM.from_config(CONFIGS[kind]())) is None
    assert lean_gpt2(gpt2().to(torch.float16)) is None
    assert lean_gpt2(gpt2(add_cross_attention=True)) is None


@pytest.mark.parametrize(("dtype", "factor"), [(torch.float32, 1.01), (torch.bfloat16, 1.1)])
def test_a_model_that_computes_something_else_has_none(dtype: torch.dtype, factor: float) -> None:
    model = gpt2().to(dtype)
    model.transformer.ln_f.register_forward_hook(lambda module, inputs, output: factor * output)
    assert lean_gpt2(model) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_that_ignores_the_mask_is_found_out(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    assert lean_gpt2(gpt2().to(dtype)) is not None
    right = LeanGpt2.__call__
    monkeypatch.setattr(
        LeanGpt2, "__call__", lambda self, mask, positions, **inputs: right(
            self, None, positions, **inputs
        ),
    )  # fmt: skip
    assert lean_gpt2(gpt2().to(dtype)) is None
