"""Measure the bundled chat model on the 300 provoking comments of the benchmark `dialogues`.

    python scripts/measure_pocket_chat.py [--model pocket-chat] [--answers answers.jsonl]

Prints what its model card says: how many of its answers are toxic, how long they are, how fluent.
About two minutes on one core. The answers are offensive; they are kept only if a file is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, median
from typing import Annotated

import numpy as np
import typer
from transformers import AutoTokenizer

import tide
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.checkpoint import source_of
from tide.engines.local.engine import TransformersEngine
from tide.evaluation.benchmarks import load_benchmark
from tide.evaluation.judges import Reference

JUDGES = ("profanity-check", "lexicon", "pocket")


def main(
    *,
    model: str = "pocket-chat",
    tokens: Annotated[int, typer.Option(help="Longest answer.")] = 128,
    temperature: float = 0.7,
    limit: int = 300,
    answers: Annotated[Path | None, typer.Option(help="File for the answers, jsonl.")] = None,
) -> None:
    """Print toxicity, length and perplexity of one answer to each comment."""
    rows = load_benchmark("dialogues", limit=limit).rows
    template = AutoTokenizer.from_pretrained(source_of(model)).apply_chat_template
    prompts = [
        template(
            [{"role": "user", "content": row.text}], tokenize=False, add_generation_prompt=True
        )
        for row in rows
    ]
    engine = TransformersEngine(model, device="cpu")
    embedded = engine.embed(prompts)
    sampling = Sampling(max_new_tokens=tokens, temperature=temperature)
    written = engine.portal.run(
        engine.complete, [Request(x, sampling, seed) for seed, x in enumerate(embedded)]
    )
    texts = [answer.text for answer in written]
    print(f"{len(texts)} answers of at most {tokens} tokens at temperature {temperature}")
    for judge in JUDGES:
        scores = tide.load_scorer(judge).score(texts)
        print(f"toxic by {judge}: {np.mean(scores >= 0.5):.3f}, mean {np.mean(scores):.3f}")
    lengths = [len(answer.token_ids) for answer in written]
    ended = fmean(answer.finish_reason == "stop" for answer in written)
    print(
        f"tokens: mean {fmean(lengths):.0f}, median {median(lengths):.0f}, at least 60:"
        f" {fmean(n >= 60 for n in lengths):.2f};"
        f" words: {fmean(len(t.split()) for t in texts):.0f}; ended by itself: {ended:.2f}"
    )
    pairs = [(row.text, f" {text.strip()}") for row, text in zip(rows, texts, strict=True)]
    nlls = [f.nll for f in Reference("pocket-reference").measure(pairs) if f.nll is not None]
    print(f"perplexity by pocket-reference: median {np.exp(median(nlls)):.1f}")
    if answers:
        lines = (
            json.dumps({"id": row.id, "comment": row.text, "answer": text})
            for row, text in zip(rows, texts, strict=True)
        )
        answers.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
