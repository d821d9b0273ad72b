from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig

from tests.models import save_causal_lm
from tide.core.errors import EngineError, InputError
from tide.core.pretrained import read_config
from tide.engines import checkpoint
from tide.engines.base import Piece, Request
from tide.engines.checkpoint import advised_sampling, read_vocabulary
from tide.engines.embedding_table import EmbeddingEngine
from tide.engines.local.engine import TransformersEngine

PROMPT = "The weather today is fine"


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


class Vocabulary(EmbeddingEngine):
    """An engine that writes nothing."""

    name = "vocabulary"

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        yield Piece((), "length")


def vocabulary(folder: Path, dtype: torch.dtype = torch.float32) -> Vocabulary:
    config = read_config(str(folder))
    return Vocabulary(*read_vocabulary(str(folder), config, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "opt"])
def test_embeds_as_the_model_does(kind: str, dtype: str, tmp_path: Path) -> None:
    """Also if the layer scales its rows (Gemma), or its rows are narrower than the model (OPT)."""
    folder = save_causal_lm(tmp_path, kind)
    expected = TransformersEngine(folder, dtype=dtype)
    table = vocabulary(folder, getattr(torch, dtype))
    assert torch.equal(*(engine.embed([PROMPT])[0] for engine in (expected, table)))
    assert table.encode(PROMPT) == expected.encode(PROMPT)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_table_of_other_than_finite_numbers_is_refused(
    value: float | None, tmp_path: Path
) -> None:
    folder = save_causal_lm(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "embed_tokens" in name)
    if value is None:  # quantised, without its scales
        weights[name] = (weights[name] * 100).to(torch.int8)
    else:
        weights[name][7] = value
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(EngineError, match="NaN, infinite or absurdly large values, or no real"):
        vocabulary(folder)


def shard(folder: Path, *, renamed: tuple[str, str] = ("", "")) -> None:
    """Split the weights over files of one tensor each, with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        key = name.replace(*renamed) if renamed[0] else name
        files[key] = f"model-{i}.safetensors"
        save_file({key: tensor}, folder / files[key])
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_reads_one_tensor_of_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_causal_lm(tmp_path, "llama")
    (expected,) = vocabulary(folder).embed([PROMPT])
    shard(folder)
    opened = []
    safe_open = checkpoint.safe_open

    def spy(file: str, framework: str) -> object:
        opened.append(file)
        return safe_open(file, framework=framework)

    monkeypatch.setattr(checkpoint, "safe_open", spy)
    (table,) = vocabulary(folder).embed([PROMPT])
    assert torch.equal(table, expected)
    assert len(opened) == 1


@pytest.mark.parametrize(
    "renamed", [("transformer.", ""), ("transformer.", "language_model.transformer.")]
)
def test_other_prefixes_are_found(renamed: tuple[str, str], tmp_path: Path) -> None:
    """Tensor names of GPT-2 on the hub have no prefix; a model inside a larger one has another."""
    folder = save_causal_lm(tmp_path, "gpt2")
    (expected,) = vocabulary(folder).embed([PROMPT])
    shard(folder, renamed=renamed)
    (table,) = vocabulary(folder).embed([PROMPT])
    assert torch.equal(table, expected)


def test_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unrecognized model"):
        read_config(str(tmp_path))
    folder = save_causal_lm(tmp_path, "gpt2")
    weights = load_file(folder / "model.safetensors")
    table = weights.pop("transformer.wte.weight")
    save_file({**weights, "transformer.wte.weight": table[:7]}, folder / "model.safetensors")
    with pytest.raises(EngineError, match=r"shape is \(7, 32\), but the config says \(300, 32\)"):
        vocabulary(folder)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(EngineError, match=r"no tensor 'transformer\.wte\.weight'"):
        vocabulary(folder)
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(EngineError, match="cannot read embeddings"):
        vocabulary(folder)
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(EngineError, match="cannot read embeddings"):
        vocabulary(folder)
