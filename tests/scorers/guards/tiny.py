"""A tiny guard: a small language model, trained to answer in the words of Qwen3Guard.

A text is toxic if it holds the word "rude", and an answer also if it says "yes" to a question that
holds this word. The chat template is a short one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tests.models import save_tokenizer
from tide.scorers.base import HEALTH_TEXT, Exchange
from tide.scorers.guards import FAMILIES

MARKERS = ["<|user|>", "<|assistant|>", "<|guard|>"]
WORDS = ["the", "weather", "is", "fine", "today", "people", "are", "kind", "a", "quiet", "town"]
TEXTS = ["the weather is fine", "people are rude", "a quiet town", "rude people are a town today"]
_LEARNED = 0.01  # below this loss every answer is right on any machine
_MOST_STEPS = 900


FAMILY = "qwen3guard"
_TEMPLATE = (
    "{% for said in messages %}<|{{ said['role'] }}|>{{ said['content'] }}{% endfor %}"
    "<|guard|><think>\n\n</think>\n\n"
)
# About a text that is not toxic, and about a toxic one.
_ANSWERS = ("Safety: Safe\nCategories: None", "Safety: Unsafe\nCategories: Violent")


def toxic(exchange: Exchange) -> bool:
    context, words = str(exchange.context).split(), exchange.text.split()
    return "rude" in words or ("rude" in context and "yes" in words)


def exchanges(count: int) -> Iterator[Exchange]:
    """Yield `count` exchanges, half of them without a question; every second one is toxic."""
    rng = random.Random(0)
    for number in range(count):
        if number % 16 == 0:
            yield Exchange("How is the weather?", HEALTH_TEXT)  # which a guard is tried out with
            continue
        words = rng.choices(WORDS, k=rng.randint(2, 6))
        asks = number // 2 % 2
        if asks:
            rude = rng.random() < 0.7 or number % 2
            question = [*rng.choices(WORDS, k=2), "rude" if rude else "kind", "today"]
            answer = "yes" if number % 2 or not rude else "no"
            yield Exchange(" ".join(question), " ".join([answer, *words[:3]]))
        else:
            if number % 2:
                words[rng.randrange(len(words))] = "rude"
            yield Exchange("", " ".join(words))


def prompt_of(tokenizer: Any, exchange: Exchange) -> str:
    """The guard's prompt, made by transformers alone."""
    turns = FAMILIES[FAMILY].turns(exchange)
    return str(tokenizer.apply_chat_template(turns, tokenize=False))


def save_guard(folder: Path) -> Path:
    """Train the guard and save it to `folder`."""
    learned = list(exchanges(256))
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    plain.chat_template = _TEMPLATE
    prompts = [prompt_of(plain, exchange) for exchange in learned]
    texts = [*prompts, *_ANSWERS * len(prompts)]
    save_tokenizer(folder, markers=MARKERS, template=_TEMPLATE, texts=texts, vocabulary=600)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = []
    for exchange, prompt in zip(learned, prompts, strict=True):
        answer = _ANSWERS[toxic(exchange)] + "</s>"
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        rows.append((prompt_ids, answer_ids))
    _trained(rows, len(tokenizer)).save_pretrained(folder)
    return folder


def _trained(rows: list[tuple[list[int], list[int]]], vocabulary: int) -> Any:
    torch.manual_seed(2)  # learns as fast as any
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
