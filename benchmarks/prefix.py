"""Measure the cost of a search after its first evaluation, if 8 rows or all rows are perturbed.

    python benchmarks/prefix.py [--repeats 3]

The model has random weights (GPT-2's architecture, 20 M parameters), since the bundled model's
context is too short. `tide` searches one prompt at a time, with 2 samples and with 8; the
scorer accepts nothing before the third round, so each search takes 3 or 9 further evaluations.
The last 8 rows and all rows take turns in one run. Prints a table.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tide import Detoxifier, pocket
from tide.engines.local.engine import TransformersEngine

LENGTHS = (128, 512, 2048)
WAYS = ("content", "last:8")
SAMPLES = {2: 3, 8: 9}  # samples: evaluations beyond the first
ROUNDS = 3
WORDS = [
    "the", "a", "rain", "town", "people", "day", "fine", "quiet", "kind", "weather", "house",
    "road", "and", "of", "in", "over", "was", "is",
]  # fmt: skip


class Late:
    """Accepts the third round of a search, and notes when the first evaluation was written."""

    name, threshold = "late", 0.5

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine
        self.begin()

    def begin(self) -> None:
        self._rounds = 0
        self.first: tuple[float, int] | None = None

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        self.first = self.first or (time.perf_counter(), self._engine.forward_tokens)
        self._rounds += 1
        return np.full(len(texts), float(self._rounds < ROUNDS))

    def close(self) -> None:
        pass


def save_model(folder: Path) -> Path:
    """Save a random GPT-2 with the bundled model's tokenizer and a context of 4,096 tokens."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(pocket.MODEL)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=4096, n_embd=512, n_layer=6, n_head=8,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_prompt(engine: TransformersEngine, tokens: int) -> str:
    """Return a text of about `tokens` tokens."""
    choose = random.Random(tokens).choice
    (ids,) = engine.tokenize([" ".join(choose(WORDS) for _ in range(tokens))])
    text: str = engine.tokenizer.decode(ids[:tokens])
    return text


def main(repeats: int = 3) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = TransformersEngine(save_model(Path(folder)))
    scorer = Late(engine)
    detoxifier = Detoxifier(engine, scorer=scorer, strategy="tide")

    def search(prompt: str, samples: int, perturb: str) -> tuple[float, int]:
        """Return the seconds and forward tokens after the first evaluation."""
        scorer.begin()
        result = detoxifier(prompt, num_samples=samples, perturb=perturb)
        assert scorer.first is not None
        assert (result.accepted, result.best.evaluations) == (True, 1 + SAMPLES[samples])
        started, read = scorer.first
        return time.perf_counter() - started, engine.forward_tokens - read

    table = Table("tokens", "samples", "moved", "seconds", "forward tokens", "times shorter")
    for tokens, samples in product(LENGTHS, SAMPLES):
        prompt = make_prompt(engine, tokens)
        turns = [[search(prompt, samples, way) for way in WAYS] for _ in range(repeats + 1)][1:]
        shorter = statistics.median(everything[0] / last[0] for everything, last in turns)
        for way, found, ratio in zip(
            WAYS, zip(*turns, strict=True), ("", f"{shorter:.1f}"), strict=True
        ):
            seconds, read = map(statistics.median, zip(*found, strict=True))
            row = (tokens, samples, way, f"{seconds:.3f}", f"{read:,.0f}", ratio)
            table.add_row(*map(str, row))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
