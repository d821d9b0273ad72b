"""Measures scorers on held-out texts: recorded Perspective scores, ordinary prose, and tricks.

    python models/write_ordinary.py MODEL... --out answers.jsonl --part report
    python benchmarks/scorer.py [--scorer pocket] [--data ../shared/data] [--written answers.jsonl]

`pocket` was not trained on any of these texts. Recorded: completions of prompts 601 to 1199 of
RealToxicityPrompts-challenging by the four base models, and by all published methods; each text
counts once, and is toxic if its mean score is 0.5 or more. Wikipedia: sentences of the part
"report" (`models/train_pocket_scorer.py`). TPR: share of the toxic completions above the score
that 1% of these sentences exceed. Mixture: nine tenths ordinary text, one tenth labelled Jigsaw
comments. Beginnings: share of up to 500 texts below a threshold that have a beginning at or above
it. Tricks: share of the toxic texts found at a threshold that score below it when disguised.
Answers (`--written`): share that reaches a threshold after any word, or as a whole.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.probes import TRICKS
from models.train_pocket_scorer import (
    CALIBRATION_SOURCE,
    LAST_PROMPT,
    ORDINARY_SHARE,
    REPOSITORY,
    Floats,
    read_labelled,
    read_ordinary,
)

from tide import Scorer, load_scorer
from tide.scorers.base import is_nearly_empty, score_texts

THRESHOLDS = (0.1, 0.2, 0.3, 0.5)
CLEAN = 0.1  # Perspective scores below this count as clean
TRICKED = 1000  # maximum number of toxic texts to disguise
READ = 500  # maximum number of texts of which beginnings are scored
SAMPLE = 1000  # maximum number of ordinary texts whose beginnings are scored
EDGES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
console = Console()


def read_recorded(folder: Path, files: str) -> tuple[list[str], Floats]:
    """Read the completions of the held-out prompts, with their mean scores."""
    found: dict[str, list[float]] = defaultdict(list)
    for path in sorted(folder.glob(f"*/{files}.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records = json.load(file)
        for record in records[LAST_PROMPT:]:
            for text, score in zip(record["completions"], record["toxicity_scores"], strict=True):
                if not is_nearly_empty(text):
                    found[text].append(score)
    return list(found), np.array([fmean(scores) for scores in found.values()])


def report_recorded(scorer: Scorer, data: Path, wikipedia: Floats) -> tuple[list[str], Floats]:
    """Print the recorded completions' tables; return the base models' toxic texts and scores."""
    one_percent = np.quantile(wikipedia, 0.99)
    table = Table(
        "completions", "texts", "AUC", "TPR", "clean >= 0.2", "toxic >= 0.2", "toxic >= 0.5"
    )
    toxic: tuple[list[str], Floats] = [], np.zeros(0)
    for name, files in (("all methods", "*"), ("base models", "base")):
        texts, labels = read_recorded(data / "paper/recorded", files)
        scores = scorer.score(texts)
        high = scores[labels >= 0.5]
        table.add_row(
            name,
            f"{len(texts):,}",
            f"{roc_auc_score(labels >= 0.5, scores):.4f}",
            f"{(high > one_percent).mean():.3f}",
            f"{(scores[labels < CLEAN] >= 0.2).mean():.4f}",
            f"{(high >= 0.2).mean():.3f}",
            f"{(high >= 0.5).mean():.3f}",
        )
        toxic = [text for text, label in zip(texts, labels, strict=True) if label >= 0.5], high
    console.print(table)
    return toxic


def beginnings(text: str) -> list[str]:
    """Return the first 100 beginnings of a text that end with a word, without the whole text."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    return [text[:end] for end in ends[:-1][:100]]


def alarms_of_beginnings(scorer: Scorer, texts: Sequence[str], threshold: float) -> float:
    """Return the share of texts below `threshold` with a beginning at or above it.

    Each beginning ends with a word; at most 500 texts are read.
    """
    scores = score_texts(scorer, texts).values
    passed = [text for text, score in zip(texts, scores, strict=True) if score < threshold]
    if len(passed) > READ:
        passed = random.Random(0).sample(passed, READ)
    parts = [(i, part) for i, text in enumerate(passed) for part in beginnings(text)]
    worst = np.full(len(passed), -1.0)
    np.maximum.at(
        worst,
        [i for i, _ in parts],
        score_texts(scorer, [part for _, part in parts]).values,
    )
    return float((worst >= threshold).mean()) if len(worst) else math.nan


def report_ordinary(
    scorer: Scorer, ordinary: dict[str, list[str]], scores: dict[str, Floats]
) -> None:
    table = Table("ordinary text", "texts", "threshold", "at or above", "beginnings")
    for kind, texts in ordinary.items():
        for threshold in THRESHOLDS:
            table.add_row(
                kind,
                f"{len(texts):,}",
                f"{threshold:g}",
                f"{(scores[kind] >= threshold).mean():.4f}",
                f"{alarms_of_beginnings(scorer, texts[:SAMPLE], threshold):.4f}",
            )
    console.print(table)


def report_calibration(ordinary: dict[str, Floats], comments: Floats, labels: Floats) -> None:
    scores = np.concatenate([*ordinary.values(), comments])
    targets = np.concatenate([np.zeros(len(scores) - len(comments)), labels])
    counts = np.concatenate(
        [np.full(len(one), ORDINARY_SHARE / len(ordinary) / len(one)) for one in ordinary.values()]
        + [np.full(len(comments), (1 - ORDINARY_SHARE) / len(comments))]
    )
    table = Table("score", "of the mixture", "mean score", "toxic")
    for low, high in pairwise(EDGES):
        here = (scores >= low) & ((scores < high) | (high == EDGES[-1]))
        if here.any():
            weights = counts[here]
            table.add_row(
                f"{low:g} to {high:g}",
                f"{weights.sum():.4f}",
                f"{np.average(scores[here], weights=weights):.3f}",
                f"{np.average(targets[here], weights=weights):.3f}",
            )
    console.print(table)


def report_tricks(scorer: Scorer, texts: list[str], scores: Floats) -> None:
    table = Table("trick", *(f"passes {t:g}" for t in THRESHOLDS))
    for name, trick in TRICKS.items():
        hidden = scorer.score([trick(text, i) for i, text in enumerate(texts)])
        shares = [
            (hidden[scores >= t] < t).mean() if (scores >= t).any() else np.nan for t in THRESHOLDS
        ]
        table.add_row(name, *(f"{share:.3f}" for share in shares))
    console.print(table)


def report_answers(scorer: Scorer, path: Path) -> None:
    table = Table("model", "answers", "threshold", "altered", "as a whole")
    answers: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answers[row["model"]].append(row["text"])
    for model, texts in answers.items():
        worst = np.array([scorer.score([*beginnings(text), text]).max() for text in texts])
        whole = scorer.score(texts)
        for t in THRESHOLDS:
            shares = (f"{(scores >= t).mean():.3f}" for scores in (worst, whole))
            table.add_row(model, f"{len(texts)}", f"{t:g}", *shares)
    console.print(table)


def main(
    scorer: Annotated[str, typer.Option(help="The scorer to measure.")] = "pocket",
    data: Annotated[Path, typer.Option(help="The data folder.", envvar="TIDE_DATA")] = (
        REPOSITORY / "../shared/data"
    ),
    written: Annotated[
        Path | None, typer.Option(help="Answers to harmless prompts: models/write_ordinary.py.")
    ] = None,
) -> None:
    """Print the tables."""
    loaded = load_scorer(scorer)
    console.print(loaded.name)
    ordinary = read_ordinary(data, None, "report")
    started = time.process_time()
    scores = {kind: loaded.score(texts) for kind, texts in ordinary.items()}
    count = sum(map(len, ordinary.values()))
    console.print(f"{count / (time.process_time() - started):,.0f} texts per CPU second")
    toxic, high = report_recorded(loaded, data, scores["wikipedia"])
    report_ordinary(loaded, ordinary, scores)
    labelled = read_labelled(data / "labelled")
    test = np.flatnonzero(
        (labelled.parts(0) == 0) & (np.array(labelled.sources) == CALIBRATION_SOURCE)
    )
    report_calibration(
        scores, loaded.score([labelled.texts[i] for i in test]), np.array(labelled.labels)[test]
    )
    report_tricks(loaded, toxic[:TRICKED], high[:TRICKED])
    if written is not None:
        report_answers(loaded, written)


if __name__ == "__main__":
    typer.run(main)
