"""Measures scorers on recorded completions, on ordinary prose and on sentences of our own.

    python benchmarks/sentence.py data [-s sentence -s pocket ...] [--limit 8000]

`data` is the data folder (docs/data.md says how to get it). Neither `sentence` nor `pocket` was
trained on these texts:

- the authors' completions of prompts 601 to 1199, with the scores that Perspective gave them;
- BOLD's Wikipedia sentences of the part "report" (`models/train_pocket_scorer.py`);
- the labelled texts that `models/train_sentence_scorer.py` holds out;
- the sentences of `models/probes.py`.

`limit` texts of each kind are drawn at random. The beginnings of a sentence are its first word, its
first two words and so on; a search scores all beginnings.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from tide.core.errors import InputError
from tide.evaluation.reporting.tables import Column, Table, Value, to_markdown
from tide.scorers import load_scorer
from tide.scorers.assessment import agreement, error_correlations
from tide.scorers.base import Floats, Scorer, is_empty, score_texts

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from probes import LIMITS
from train_pocket_scorer import read_ordinary
from train_sentence_scorer import labels

FIRST = 600  # index of the first reported prompt
WORDS, BEGUN = 12, 300  # maximum words of a beginning; number of sentences
LEVELS = (0.5, 0.2, 0.1)


def sample(texts: list[str], limit: int) -> list[str]:
    return random.Random(0).sample(texts, min(limit, len(texts)))


def recorded(data: Path, files: str, limit: int) -> tuple[list[str], Floats]:
    """Read the distinct completions of prompts 601 to 1199, with the mean of their scores."""
    found: dict[str, list[float]] = {}
    for file in sorted((data / "paper/recorded").glob(files)):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            records = json.load(lines)
        for record in records[FIRST:]:
            for text, score in zip(record["completions"], record["toxicity_scores"], strict=True):
                if len("".join(text.split())) >= 3:
                    found.setdefault(text, []).append(score)
    if not found:
        raise InputError(f"{data}/paper/recorded: no files {files} (see docs/data.md)")
    texts = sample(list(found), limit)
    return texts, np.array([np.mean(found[text]) for text in texts])


def scores_of(scorer: Scorer, texts: list[str]) -> Floats:
    return score_texts(scorer, texts, is_empty).values


def rate(scorer: Scorer, texts: list[str]) -> float:
    """Measure the texts per second of processor time."""
    started = time.process_time()
    scorer.score(texts)
    return len(texts) / (time.process_time() - started)


def begun(scorer: Scorer, wholes: Floats, texts: list[str]) -> list[Value]:
    """Return the share of texts below each level that have a beginning at or above the level."""
    parts = [[" ".join(text.split()[:n]) for n in range(1, WORDS + 1)] for text in texts]
    scores = scores_of(scorer, [part for some in parts for part in some]).reshape(len(texts), WORDS)
    return [
        float((scores.max(axis=1) >= level)[wholes < level].mean())
        if (wholes < level).any()
        else None
        for level in LEVELS
    ]


def main(
    data: Annotated[Path, typer.Argument(help="The data folder.")],
    scorer: Annotated[list[str] | None, typer.Option("-s", help="Scorers to compare.")] = None,
    limit: Annotated[int, typer.Option(help="Texts of each kind.")] = 8000,
) -> None:
    torch.set_num_threads(1)
    names = scorer or ["sentence", "pocket", "confirm:pocket,sentence", "profanity-check"]
    loaded = [load_scorer(name) for name in names]
    ordinary = sample(read_ordinary(data, None, "report")["wikipedia"], limit)
    plain = [scores_of(one, ordinary) for one in loaded]
    _, held, _ = labels(data)
    human = [agreement(scores_of(one, held.texts), np.array(held.targets)).auc for one in loaded]
    for files, by in (("*/base.json.gz", "the models"), ("*/*.json.gz", "all methods")):
        texts, targets = recorded(data, files, limit)
        scores = [scores_of(one, texts) for one in loaded]
        columns = [Column("scorer"), Column("AUC", 4), Column("r", 3), Column("cal. error", 3),
                   Column("found at 1 % of Wikipedia", 3), Column("below 0.1, at 0.2 or more", 3),
                   Column("toxic, below 0.1", 3), Column(f"AUC of {len(held.texts):,} labelled", 4),
                   Column("texts/s", 0)]  # fmt: skip
        rows = [
            [name, *figures(own, prose_scores, targets), auc, rate(one, texts[:500])]
            for name, own, prose_scores, auc, one in zip(
                names, scores, plain, human, loaded, strict=True
            )
        ]
        toxic = np.mean(targets >= 0.5)
        show(f"{len(texts):,} recorded completions of {by}, {toxic:.3f} toxic", columns, rows)
    together = error_correlations(dict(zip(names, scores, strict=True)), targets)
    rows = [[name, *(together[name][other] for other in names)] for name in names]
    columns = [Column("scorer"), *(Column(name, 3) for name in names)]
    show("Correlation of the errors on the completions of all methods", columns, rows)
    rows = [
        [name, *(float((own >= level).mean()) for level in LEVELS),
         *begun(one, own[:BEGUN], ordinary[:BEGUN])]
        for name, own, one in zip(names, plain, loaded, strict=True)
    ]  # fmt: skip
    columns = [Column("scorer"), *(Column(f"at {level} or more", 3) for level in LEVELS),
               *(Column(f"a beginning at {level} alone", 3) for level in LEVELS)]  # fmt: skip
    show(f"{len(ordinary):,} Wikipedia sentences", columns, rows)
    rows = [
        [limit.name, "high" if limit.toxic else "low",
         *(float(((one.score(limit.sentences) >= 0.5) == limit.toxic).mean()) for one in loaded)]
        for limit in LIMITS
    ]  # fmt: skip
    columns = [Column("set"), Column("should be"), *(Column(name, 2) for name in names)]
    show("Sentences of our own: share on the right side of 0.5", columns, rows)


def figures(scores: Floats, plain: Floats, targets: Floats) -> list[Value]:
    """Return agreement with the targets, and rates at the threshold that 1 % of `plain` exceed."""
    found = agreement(scores, targets)
    above = scores > np.quantile(plain, 0.99)
    return [
        found.auc,
        found.correlation,
        found.calibration_error,
        float(above[targets >= 0.5].mean()),
        float((scores >= 0.2)[targets < 0.1].mean()),
        float((scores < 0.1)[targets >= 0.5].mean()),
    ]


def show(title: str, columns: list[Column], rows: list[list[Value]]) -> None:
    print(to_markdown(Table("", title, columns, rows, [])), flush=True)


if __name__ == "__main__":
    typer.run(main)
