"""Tiny models of every architecture the tests need, built from their configs: no downloads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    OPTConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from tide.engines.local.engine import TransformersEngine

VOCAB = 300
CONTEXT = 64
_TEXT = ["The weather today is fine and the people are kind.", "Rain fell on the quiet town."]
_COMMON: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1}
_WIDTH: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
CONFIGS: dict[str, Any] = {
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, **_COMMON),
    "llama": lambda: LlamaConfig(**_WIDTH, num_key_value_heads=2, **_COMMON),
    "qwen3": lambda: Qwen3Config(**_WIDTH, num_key_value_heads=2, head_dim=8, **_COMMON),
    "gemma2": lambda: Gemma2Config(
        **_WIDTH, num_key_value_heads=2, head_dim=8, sliding_window=16, **_COMMON
    ),
    "opt": lambda: OPTConfig(**_WIDTH, ffn_dim=64, word_embed_proj_dim=16, **_COMMON),
    "gpt_neox": lambda: GPTNeoXConfig(**_WIDTH, **_COMMON),
}
# It has no key-value cache.
MAMBA = MambaConfig(hidden_size=16, state_size=4, num_hidden_layers=1, **_COMMON)


def save_tokenizer(
    folder: Path,
    *,
    bos: bool = False,
    word_marks: bool = False,
    markers: Sequence[str] = (),
    template: str | None = None,
    texts: Sequence[str] = _TEXT,
    vocabulary: int = VOCAB,
) -> None:
    """A byte-level BPE tokenizer, or with `word_marks` one that marks word starts (Llama-like).

    markers: further special tokens. template: the chat template. texts: what it learns from.
    """
    bpe = Tokenizer(models.BPE(unk_token="<unk>" if word_marks else None))
    if word_marks:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace()
        bpe.decoder = decoders.Metaspace()
        alphabet = sorted({c for text in _TEXT for c in text})
    else:
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>", "<unk>", *markers],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    if bos:
        bpe.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def save_causal_lm(folder: Path, kind: Any, **tokenizer_options: Any) -> Path:
    """A random causal LM whose greedy continuations vary, with its tokenizer.

    kind: a name of `CONFIGS`, or another config.
    """
    torch.manual_seed(0)
    config = CONFIGS[kind]() if isinstance(kind, str) else kind
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4.0)  # otherwise logits are so close that rounding would decide
    model.save_pretrained(folder)
    save_tokenizer(folder, **tokenizer_options)
    return folder


def save_classifier(folder: Path, labels: list[str], kind: str = "bert", **config: Any) -> Path:
    """A random text classifier with `labels`."""
    torch.manual_seed(0)
    settings = AutoConfig.for_model(
        kind, **{**_WIDTH, **config}, vocab_size=VOCAB, id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )  # fmt: skip
    AutoModelForSequenceClassification.from_config(settings).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@contextmanager
def ending_with(engine: TransformersEngine, *tokens: int) -> Iterator[None]:
    """Inside, these tokens end the texts of the engine's model."""

    async def set_ids(ids: torch.Tensor) -> None:
        engine.stop_ids = engine._batch.stop_ids = ids
        engine._batch.lanes.clear()  # lanes keep the tokens with which they were made

    before = engine.stop_ids
    engine.portal.run(set_ids, torch.tensor(tokens, dtype=torch.int64, device=before.device))
    try:
        yield
    finally:
        engine.portal.run(set_ids, before)
