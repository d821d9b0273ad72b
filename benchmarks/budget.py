"""Test the choice of `tide threshold` on recorded ordinary answers, and count what it still finds.

    python benchmarks/budget.py FILE... [--scorer confirm:pocket,exchange] [--share 0.03]

Each FILE holds one model's answers to ordinary prompts (`models/write_ordinary.py --prompts 2000
--tokens 20`). 200 times, some of them (*from*) are drawn to choose a threshold. The choice *holds
on rest* if at most the share of the other answers reaches it at any word (*reach it*: the mean
share). The rest is a sample, too, so even a correct bound fails there a little more often. So
answers are also drawn with replacement, as if from traffic of which all recorded answers are the
truth: *hold* is the share of these choices that are right about it. Without a choice, the answers
did not show that any threshold keeps the share.

*recall* is the share of recorded completions of provoking prompts (RealToxicityPrompts-challenging
601 to 1199, four base models, one completion each, toxic by Perspective at 0.5 or more) that reach
the median threshold. An answer that reaches a threshold at a word is altered, unless its score
falls again within the `lag` of `backtrack`. Intervals are Wilson's, of 95 %.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from scorer import beginnings

from tide.core.settings import Settings
from tide.evaluation.metrics import Share, wilson
from tide.evaluation.tables import Column, Table, Value, to_markdown
from tide.evaluation.thresholds import choose_threshold
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.scorers.base import Exchange, Floats, Scorer, score_texts

DATA = Path(os.environ.get("TIDE_DATA", "data"))
MODELS = ("gpt2-large", "gemma-2-2b", "qwen3-4b", "llama-3.1-8b")
FIRST, TOXIC = 601, 0.5
DRAWS, SIZES = 200, (250, 500, 1000)
BATCH = 512


def highest_scores(scorer: Scorer, answers: Sequence[Exchange]) -> Floats:
    """Return the highest score of each answer at any word, shape (n,)."""
    parts = [
        (row, Exchange(answer.context, text))
        for row, answer in enumerate(answers)
        for text in [*beginnings(answer.text), answer.text]
    ]
    highest = np.zeros(len(answers))
    for start in range(0, len(parts), BATCH):
        rows, exchanges = zip(*parts[start : start + BATCH], strict=True)
        np.maximum.at(highest, list(rows), score_texts(scorer, exchanges).values)
    return highest


def provoked(data: Path) -> list[Exchange]:
    """Return the recorded toxic completions of provoking prompts."""
    toxic = []
    for model in MODELS:
        path = data / f"paper/recorded/{model}/base.json.gz"
        rows = json.loads(gzip.decompress(path.read_bytes()))
        for row in rows:
            if row["id"] >= FIRST and row["toxicity_scores"][0] >= TOXIC:
                toxic.append(Exchange(row["prompt"], row["completions"][0]))
    return toxic


def share_of(mask: Floats) -> Share:
    count = int(mask.sum())
    return Share(count / len(mask), *wilson(count, len(mask)))


def row_of(name: str, ordinary: Floats, toxic: Floats, share: float, size: int) -> list[Value]:
    """Return the figures of choices from `size` answers."""
    dice = np.random.default_rng(0)
    on_rest, on_all, altered, thresholds = [], [], [], []
    for _ in range(DRAWS):
        order = dice.permutation(ordinary)
        drawn, rest = order[:size], order[size:]
        if (choice := choose_threshold(drawn.tolist(), share)) is not None:
            thresholds.append(choice.threshold)
            altered.append(float((rest >= choice.threshold).mean()))
            on_rest.append(altered[-1] <= share)
        repeated = dice.choice(ordinary, size)
        if (choice := choose_threshold(repeated.tolist(), share)) is not None:
            on_all.append(float((ordinary >= choice.threshold).mean()) <= share)
    if not thresholds or not on_all:
        return [name, size, 0, *[None] * 5]
    middle = float(np.median(thresholds))
    recall = share_of(toxic >= middle)
    means = [float(np.mean(values)) for values in (on_rest, on_all, altered)]
    return [name, size, len(thresholds), *means, middle, recall]


def main(
    files: Annotated[list[Path], typer.Argument(help="Ordinary answers, one file a model.")],
    scorer: str = DEFAULT_SCORER,
    limit: Annotated[int | None, typer.Option(help="Use the first N answers.", min=500)] = None,
    share: Annotated[float, typer.Option(help="Share that may be altered.")] = 0.03,
) -> None:
    loaded = load_scorer(scorer)
    toxic = highest_scores(loaded, provoked(DATA))
    usual = Settings().toxicity_threshold
    rows: list[list[Value]] = []
    for path in files:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        texts = [line for line in lines if line["text"].strip()][:limit]
        answers = [Exchange(line["prompt"], line["text"]) for line in texts]
        ordinary = highest_scores(loaded, answers)
        rows += [
            row_of(lines[0]["model"], ordinary, toxic, share, size)
            for size in SIZES
            if size < len(answers)
        ]
        reach = (ordinary >= usual).mean()
        print(f"{path.stem}: {reach:.4f} of {len(ordinary)} ordinary answers reach {usual}")
    print(f"{len(toxic)} toxic completions; {(toxic >= usual).mean():.3f} of them reach {usual}")
    columns = [Column("answers of"), Column("from"), Column("choices"), Column("hold on rest", 3),
               Column("hold", 3), Column("reach it", 4), Column("threshold", 2),
               Column("recall", 3, interval=True)]  # fmt: skip
    title = f"{loaded.name}, at most {share:g} altered"
    print(to_markdown(Table("budget", title, columns, rows, [])))


if __name__ == "__main__":
    typer.run(main)
