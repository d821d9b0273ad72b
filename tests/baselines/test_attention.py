from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.baselines.conftest import fit_task
from tests.models import CONFIGS, MAMBA, save_causal_lm
from tide.baselines.attention import Destein, Reversal, find_heads
from tide.baselines.base import FitSettings
from tide.baselines.fit import Labelled
from tide.core.errors import EngineError
from tide.data.texts import Pair
from tide.engines.local.engine import load_model

PROJECTIONS = {
    "gpt2": "transformer.h.{}.attn.c_proj",
    "llama": "model.layers.{}.self_attn.o_proj",
    "qwen3": "model.layers.{}.self_attn.o_proj",
    "gemma2": "model.layers.{}.self_attn.o_proj",
    "opt": "model.decoder.layers.{}.self_attn.out_proj",
    "gpt_neox": "gpt_neox.layers.{}.attention.dense",
}


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_heads_of_every_architecture(kind: str) -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval()
    heads = find_heads(model)
    expected = [model.get_submodule(PROJECTIONS[kind].format(i)) for i in range(2)]
    assert list(heads.projections) == expected
    merged = torch.arange(32.0).view(1, 1, 32)
    assert heads.split(merged)[0, 0].tolist() == merged.view(4, 8).tolist()
    seen = {}
    with torch.inference_mode():
        with heads.hooked(lambda layer, x: seen.setdefault(layer, x.shape) and None):
            before = model(torch.tensor([[5, 6, 7]])).logits
        with heads.hooked(lambda layer, x: torch.zeros_like(x)):
            changed = model(torch.tensor([[5, 6, 7]])).logits
        for projection in heads.projections:
            assert projection.bias is None or not projection.bias.any()
        # The projection maps zeros to zeros.
        with heads.hooked(lambda layer, x: torch.zeros_like(x), outputs=True):
            assert torch.equal(model(torch.tensor([[5, 6, 7]])).logits, changed)
        after = model(torch.tensor([[5, 6, 7]])).logits
    assert seen == {0: (1, 3, 32), 1: (1, 3, 32)}
    assert torch.equal(before, after)
    assert not torch.allclose(before, changed)


def test_find_heads_refuses_unknown_layout() -> None:
    model = AutoModelForCausalLM.from_config(MAMBA)
    with pytest.raises(EngineError, match="model: reversal and destein do not know its layers"):
        find_heads(model)


def test_destein_learns_from_its_texts_after_prefixes_of_max_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("negative", "positive"):
        monkeypatch.setattr(Reversal, side, "Rain fell on the quiet town, and people were: ")
    tokenizer, model = load_model(str(save_causal_lm(tmp_path, "gpt2")), torch.device("cpu"))
    settings = FitSettings(max_tokens=8)
    assert len(tokenizer(Reversal.negative)["input_ids"]) > 8

    def directions(toxic: str) -> torch.Tensor:
        data = Labelled([], [Pair(toxic=toxic, neutral=["kind"]) for _ in range(60)])
        return Destein.fit(fit_task(model, tokenizer, data, settings)).tensors["directions"]

    assert not torch.equal(directions("rude"), directions("unkind"))
