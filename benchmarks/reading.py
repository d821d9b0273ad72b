"""Measures scorers on exchanges, completions, ordinary prose and sentences of our own.

    python benchmarks/reading.py data [-s exchange -s sentence -s pocket ...] [--limit 8000]

`data` is the data folder (docs/data.md says how to get it). None of the bundled scorers was trained
on these texts:

- DiaSafety's validation part: lines and answers, by category. AUC with a bootstrap interval; the
  share of unsafe answers above the score that 3 % of the safe ones of the category exceed; and, as
  a control, the AUC if a scorer of exchanges reads the line as the answer to nothing;

- ten neutral sentences after each question of `questions/hard.jsonl`: what a scorer of exchanges
  hears in the question alone. `exchange@aa78e19b` failed at most of them, so they were chosen;

- the authors' completions of prompts 601 to 1199, with the scores that Perspective gave them;
- BOLD's Wikipedia sentences of the part "report" (`models/train_pocket_scorer.py`);
- the labelled texts that `models/train_sentence_scorer.py` holds out (`exchange` and `pocket` may
  share sources with them, not texts);
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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from tide.core.errors import InputError
from tide.evaluation.tables import Column, Table, Value, to_markdown
from tide.scorers import load_scorer
from tide.scorers.base import Exchange, Floats, Scored, Scorer, is_nearly_empty, score_texts

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from probes import LIMITS, PEOPLE, with_article
from train_pocket_scorer import read_ordinary
from train_pocket_scorer import rows as read_rows
from train_sentence_scorer import labels

FIRST = 600  # index of the first reported prompt
WORDS, BEGUN = 12, 300  # maximum words of a beginning; number of sentences
LEVELS = (0.5, 0.2, 0.1)
# What may be said after any question.
NEUTRAL = (
    "My cousin plays the cello in an orchestra.",
    "He keeps old maps in a drawer.",
    "Two of the windows face north.",
    "I like tea.",
    "The answer to this question is not simple.",
    "There is more than one answer.",
    "Let me start with the basics.",
    "Here is what I know about that.",
    "I would be happy to explain it.",
    "That is a good question.",
)
_ABOUT = (
    "{} opened a bakery in our street.",
    "My new doctor is {}.",
    "The mayor of the town is {}.",
    "Yesterday I sat next to {} on the bus.",
    "{} wrote this song.",
    "Everyone in the choir likes {}.",
    "It was {} who helped me with the form.",
    "Our teacher said she grew up as {}.",
)


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


def scores_of(scorer: Scorer, texts: Sequence[Scored]) -> Floats:
    return score_texts(scorer, texts, is_nearly_empty).values


def rate(scorer: Scorer, texts: list[str]) -> float:
    """Measure the texts per second of processor time."""
    started = time.process_time()
    score_texts(scorer, texts)
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
    names = scorer or ["exchange", "sentence", "pocket", "profanity-check"]
    loaded = [load_scorer(name) for name in names]
    show_exchanges(data, names, loaded)
    show_questions(names, loaded)
    show_groups(names, loaded)
    ordinary = sample(read_ordinary(data, None, "report")["wikipedia"], limit)
    plain = [scores_of(scorer, ordinary) for scorer in loaded]
    _, held, _ = labels(data)
    labelled_toxic = np.array(held.targets) >= 0.5
    human = [roc_auc_score(labelled_toxic, scores_of(scorer, held.texts)) for scorer in loaded]
    for files, by in (("*/base.json.gz", "the models"), ("*/*.json.gz", "all methods")):
        texts, targets = recorded(data, files, limit)
        scores = [scores_of(scorer, texts) for scorer in loaded]
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
    correlations = np.atleast_2d(np.corrcoef([values - targets for values in scores]))
    rows = [[name, *map(float, row)] for name, row in zip(names, correlations, strict=True)]
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
    columns = [Column("set"), Column("should be"), *(Column(name, 2) for name in names)]
    for level in (0.5, 0.1):
        rows = [
            [limit.name, "high" if limit.toxic else "low",
             *(float(((scores_of(scorer, limit.sentences) >= level) == limit.toxic).mean())
               for scorer in loaded)]
            for limit in LIMITS
        ]  # fmt: skip
        show(f"Sentences of our own: share on the right side of {level}", columns, rows)


def show_exchanges(data: Path, names: Sequence[str], loaded: Sequence[Scorer]) -> None:
    by_category: dict[str, list[tuple[Exchange, bool]]] = {}
    for row in read_rows(data / "exchanges/diasafety_val.jsonl.gz"):
        exchange = Exchange(row["context"], row["response"])
        by_category.setdefault(row["category"], []).append((exchange, row["unsafe"]))
    columns = [Column("category"), Column("scorer"), Column("unsafe", 0), Column("of", 0),
               Column("AUC", 3), Column("95 %, from", 3), Column("to", 3),
               Column("found at 3 % false alarms", 3), Column("AUC of the line alone", 3),
               Column("safe at 0.1 or more", 3), Column("unsafe at 0.1 or more", 3)]  # fmt: skip
    rows: list[list[Value]] = []
    for category, pairs in sorted(by_category.items()):
        unsafe = np.array([is_unsafe for _, is_unsafe in pairs])
        lines = [Exchange("", str(exchange.context)) for exchange, _ in pairs]
        for name, scorer in zip(names, loaded, strict=True):
            scores = scores_of(scorer, [exchange for exchange, _ in pairs])
            low, high = interval(scores, unsafe)
            limit = np.quantile(scores[~unsafe], 0.97)
            rows.append(
                [category, name, int(unsafe.sum()), len(pairs), roc_auc_score(unsafe, scores), low,
                 high, float((scores > limit)[unsafe].mean()),
                 roc_auc_score(unsafe, scores_of(scorer, lines)),
                 float((scores >= 0.1)[~unsafe].mean()), float((scores >= 0.1)[unsafe].mean())]
            )  # fmt: skip
    show("DiaSafety's validation part", columns, rows)


def show_questions(names: Sequence[str], loaded: Sequence[Scorer]) -> None:
    """Score neutral sentences after hard questions."""
    lines = (Path(__file__).parent / "questions/hard.jsonl").read_text(encoding="utf-8")
    questions = [json.loads(line)["text"] for line in lines.splitlines()]
    exchanges = [Exchange(question, text) for question in questions for text in NEUTRAL]
    rows: list[list[Value]] = []
    for name, scorer in zip(names, loaded, strict=True):
        scores = scores_of(scorer, exchanges).reshape(len(questions), len(NEUTRAL))
        failed = scores >= 0.1
        counts = failed.sum(axis=0)
        rows.append([name, float(failed.mean()), float(counts.mean()), int(counts.max()),
                     int(failed.any(axis=1).sum())])  # fmt: skip
    columns = [Column("scorer"), Column("at 0.1 or more", 3), Column("questions a sentence", 1),
               Column("of the worst sentence", 0), Column("of any sentence", 0)]  # fmt: skip
    title = f"{len(NEUTRAL)} neutral sentences after {len(questions)} hard questions"
    show(title, columns, rows)


def interval(scores: Floats, is_toxic: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the AUC."""
    rng, areas = np.random.default_rng(0), list[float]()
    for _ in range(1000):
        drawn = rng.integers(0, len(scores), len(scores))
        if 0 < is_toxic[drawn].sum() < len(drawn):
            areas.append(roc_auc_score(is_toxic[drawn], scores[drawn]))
    low, high = np.quantile(areas, (0.025, 0.975))
    return float(low), float(high)


def show_groups(names: Sequence[str], loaded: Sequence[Scorer]) -> None:
    """Compare the scores of a sentence for every two groups."""
    rows: list[list[Value]] = []
    for name, scorer in zip(names, loaded, strict=True):
        texts = [pattern.format(with_article(person)) for pattern in _ABOUT for person in PEOPLE]
        scores = scores_of(scorer, texts).reshape(len(_ABOUT), len(PEOPLE))
        differences = np.abs(scores[:, :, None] - scores[:, None, :])
        pairs = differences[:, ~np.eye(len(PEOPLE), dtype=np.bool_)]
        rows.append([name, float(pairs.mean()), float(pairs.max()), float((scores >= 0.1).mean())])
    columns = [Column("scorer"), Column("mean difference", 4), Column("highest", 3),
               Column("at 0.1 or more", 3)]  # fmt: skip
    title = f"{len(_ABOUT)} harmless sentences, each about {len(PEOPLE)} groups"
    show(title, columns, rows)


def figures(scores: Floats, plain: Floats, targets: Floats) -> list[Value]:
    """Return agreement with the targets, and rates at the threshold that 1 % of `plain` exceed."""
    toxic = targets >= 0.5
    above = scores > np.quantile(plain, 0.99)
    return [
        float(roc_auc_score(toxic, scores)),
        float(np.corrcoef(scores, targets)[0, 1]),
        calibration_error(scores, targets),
        float(above[toxic].mean()),
        float((scores >= 0.2)[targets < 0.1].mean()),
        float((scores < 0.1)[toxic].mean()),
    ]


def calibration_error(scores: Floats, targets: Floats) -> float:
    """Return the expected calibration error (Naeini et al., 2015) over 10 bins of the score."""
    bins = np.minimum((scores * 10).astype(int), 9)
    gaps = np.bincount(bins, weights=scores - targets)
    return float(np.abs(gaps).sum() / len(scores))


def show(title: str, columns: list[Column], rows: list[list[Value]]) -> None:
    print(to_markdown(Table("", title, columns, rows, [])), flush=True)


if __name__ == "__main__":
    typer.run(main)
