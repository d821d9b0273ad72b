"""A tiny guard of random weights, which answers every prompt in the words of Qwen3Guard."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from tests.models import save_causal_lm
from tide.scorers.guards import FAMILIES

FAMILY = "qwen3guard"
VERDICTS = FAMILIES[FAMILY].verdicts
TEXTS = ["the weather is fine", "people are rude", "a quiet town", "rude people are a town today"]
_TEMPLATE = (
    "{% for said in messages %}<|{{ said['role'] }}|>{{ said['content'] }}{% endfor %}"
    "<|guard|><think>\n\n</think>\n\n"
)


def save_guard(folder: Path) -> Path:
    """Save a guard that writes "Safety:" and a verdict; the verdict depends on all that it read."""
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    learned = [*TEXTS, *(f"Safety: {verdict}" for verdict in VERDICTS)] * 9
    markers = ["<|user|>", "<|assistant|>", "<|guard|>"]
    save_causal_lm(
        folder, config, markers=markers, template=_TEMPLATE, texts=learned, vocabulary=400
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    safety, colon = tokenizer("Safety:")["input_ids"]
    verdicts = [tokenizer(f" {verdict}")["input_ids"][0] for verdict in VERDICTS]
    # The first dimensions tell which token comes next, and the others which verdict.
    read, written = (layer.weight.data for layer in (model.get_input_embeddings(), model.lm_head))
    read[:, :4], written[:, :4] = 0, 0
    read[:, 4:] *= 4
    read[:, 0], written[safety, 0] = 1, 20
    read[safety, 1], written[colon, 1] = 3, 20
    read[colon, 2], written[verdicts, 2] = 3, 20
    read[verdicts, 3], written[config.eos_token_id, 3] = 3, 20
    written[verdicts, 4:] *= 2
    model.save_pretrained(folder)
    return folder
