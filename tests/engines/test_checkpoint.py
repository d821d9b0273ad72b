from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from tests.models import save_causal_lm
from tide.core.errors import InputError
from tide.core.pretrained import read_config
from tide.engines.checkpoint import advised_sampling, read_vocabulary
from tide.engines.local.engine import TransformersEngine

PROMPT = "The weather today is fine"
TABLE = "transformer.wte.weight"  # of GPT-2


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.95}, {"temperature": 0.6, "top_p": 0.95}),
        ({"do_sample": False, "temperature": 1.0, "top_k": 50}, {"temperature": 0.0}),
        (
            {"do_sample": True, "top_k": 20, "repetition_penalty": 1.1, "max_length": 9},
            {"top_k": 20, "repetition_penalty": 1.1},
        ),
    ],
)
def test_what_the_makers_of_a_model_advise(
    config: dict[str, Any], sampling: dict[str, Any]
) -> None:
    assert advised_sampling("m", GenerationConfig(**config)) == sampling


def test_advice_that_nobody_can_follow_is_one_line() -> None:
    config = GenerationConfig(do_sample=True)
    config.top_p = 1.5
    with pytest.raises(InputError, match=r"^model m: its \S+ is invalid \(set .*: top_p: "):
        advised_sampling("m", config)


def vocabulary(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[list[int], torch.Tensor]:
    """The ids of `PROMPT`, and their embeddings."""
    tokenizer, layer = read_vocabulary(str(folder), read_config(str(folder)), dtype)
    ids = tokenizer.encode(PROMPT)
    return ids, layer(torch.tensor(ids))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "opt"])
def test_embeds_as_the_model_does(kind: str, dtype: str, tmp_path: Path) -> None:
    """Also if the layer scales its rows (Gemma), or its rows are narrower than the model (OPT)."""
    folder = save_causal_lm(tmp_path, kind)
    engine = TransformersEngine(folder, dtype=dtype)
    ids, embeddings = vocabulary(folder, getattr(torch, dtype))
    assert engine.tokenize([PROMPT]) == [ids]
    assert torch.equal(engine.embed_tokens(ids), embeddings.float())


@pytest.mark.parametrize("prefix", ["transformer.", "", "language_model.transformer."])
def test_one_tensor_of_one_shard_is_read(prefix: str, tmp_path: Path) -> None:
    """Tensor names of GPT-2 on the hub have no prefix; a model inside a larger one has another."""
    folder = save_causal_lm(tmp_path, "gpt2")
    _, expected = vocabulary(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {name: prefix + name.removeprefix("transformer.") for name in weights}
    index = {"weight_map": dict.fromkeys(names.values(), "absent.safetensors")}
    index["weight_map"][names[TABLE]] = "table.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({names[TABLE]: weights[TABLE]}, folder / "table.safetensors")
    assert torch.equal(vocabulary(folder)[1], expected)
