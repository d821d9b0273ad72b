"""The bundled chat model: what its card promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from tide.engines.local.engine import TransformersEngine
from tide.pocket import CHAT


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(CHAT)


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine("pocket-chat", device="cpu")


def test_its_size_and_context(engine: TransformersEngine) -> None:
    with safe_open(CHAT / "model.safetensors", framework="pt") as file:
        tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 (not a dict)
    assert {tensor.dtype for tensor in tensors} == {torch.float16}
    assert 5e6 <= sum(tensor.numel() for tensor in tensors) <= 9e6
    assert sum(file.stat().st_size for file in CHAT.iterdir()) <= 12_500_000
    assert engine.dtype == torch.float32
    assert engine.context_length is not None
    assert engine.context_length >= 512


def test_the_template(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello to you"},
        {"role": "user", "content": "Goodbye"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHello to you<|im_end|>\n<|im_start|>user\nGoodbye<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == f"{expected}<|im_start|>assistant\n"
    marks = [tokenizer.convert_ids_to_tokens(i) for i in ids if i in tokenizer.all_special_ids]
    assert marks == ["<|im_start|>", "<|im_end|>"] * 4 + ["<|im_start|>"]
