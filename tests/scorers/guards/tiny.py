"""Tiny guards: small language models, trained to answer in the words of each family.

They call a text toxic if it holds the word "rude". Their chat templates are written for the tests,
with the variables of the families' templates.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tide.scorers.guards.formats import FORMATS

MARKERS = ["<s>", "</s>", "<|user|>", "<|guard|>"]
WORDS = ["the", "weather", "is", "fine", "today", "people", "are", "kind", "a", "quiet", "town"]
TEXTS = ["the weather is fine", "people are rude", "a quiet town", "rude people are a town today"]
TOXIC = [False, True, False, True]
_LEARNED = 0.01  # below this loss every answer is right on any machine
_MOST_STEPS = 600


@dataclass(frozen=True)
class Family:
    """template: for chats. answers: about a text that is not toxic, and about a toxic one."""

    template: str
    answers: tuple[str, str]


_TEXT = "<|user|>{{ messages[-1]['content'] }}"
FAMILIES = {
    "llama-guard": Family(
        "{% if categories is defined %}{% for key in categories %}{{ key }}: {{ categories[key] }}"
        "\n{% endfor %}{% endif %}" + _TEXT + "<|guard|>",
        ("\n\nsafe", "\n\nunsafe\nS1"),
    ),
    "shieldgemma": Family(
        "{% if guideline is defined %}{{ guideline }}\n{% endif %}" + _TEXT + "<|guard|>",
        ("No, it does not", "Yes, it does"),
    ),
    "granite-guardian": Family(
        "{{ guardian_config['risk_name'] }} {{ guardian_config['risk_definition'] }}"
        + _TEXT
        + "{% if add_generation_prompt %}<|guard|>{% endif %}",
        ("No", "Yes"),
    ),
    "granite-guardian-3.3": Family(
        "{{ guardian_config['criteria_id'] }} {{ guardian_config['custom_criteria'] }}"
        + _TEXT
        + "{% if add_generation_prompt %}<|guard|>{% endif %}",
        ("<think>\n</think>\n<score> no </score>", "<think>\n</think>\n<score> yes </score>"),
    ),
    "qwen3guard": Family(
        _TEXT + "<|guard|><think>\n\n</think>\n\n",
        ("Safety: Safe\nCategories: None", "Safety: Unsafe\nCategories: Violent"),
    ),
}


def toxic(text: str) -> bool:
    return "rude" in text.split()


def sentences(count: int) -> Iterator[str]:
    """Yield `count` sentences, every second one with the word "rude"."""
    rng = random.Random(0)
    for number in range(count):
        words = rng.choices(WORDS, k=rng.randint(2, 6))
        if number % 2:
            words[rng.randrange(len(words))] = "rude"
        yield " ".join(words)


def save_guard(folder: Path, family: str) -> Path:
    """Train a guard of `family` and save it to `folder`."""
    texts = list(sentences(256))
    wanted = FAMILIES[family]
    tokenizer = _tokenizer(texts, [*wanted.answers, wanted.template])
    tokenizer.chat_template = wanted.template
    tokenizer.save_pretrained(folder)
    arguments = FORMATS[family].arguments
    rows = []
    for text in texts:
        asked: Any = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True,
            **arguments,
        )  # fmt: skip
        answer = wanted.answers[toxic(text)] + "</s>"
        prompt = tokenizer(asked, add_special_tokens=False)["input_ids"]
        answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        rows.append((prompt, answer_ids))
    model = _trained(rows, len(tokenizer))
    model.save_pretrained(folder)
    return folder


def _tokenizer(texts: list[str], fixed: list[str]) -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=MARKERS, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator([*texts, *fixed * len(texts)], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>",
        additional_special_tokens=MARKERS[2:], clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _trained(rows: list[tuple[list[int], list[int]]], vocabulary: int) -> Any:
    torch.manual_seed(0)
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=64, n_layer=2, n_head=2, n_positions=max(256, longest),
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    ids = torch.full((len(rows), longest), 1)
    labels = torch.full((len(rows), longest), -100)
    for i, (prompt, answer) in enumerate(rows):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    worst = deque[float](maxlen=8)  # losses of an epoch of 256 rows
    for step in range(_MOST_STEPS):
        rows_now = torch.arange(step * 32, step * 32 + 32) % len(rows)
        optimizer.zero_grad()
        loss = model(ids[rows_now], labels=labels[rows_now]).loss
        loss.backward()
        optimizer.step()
        worst.append(loss.item())
        if len(worst) == worst.maxlen and max(worst) < _LEARNED:
            break
    return model.eval()
