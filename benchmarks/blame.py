"""In how few words the toxicity of real models' text sits: blamed words are deleted, one by one.

    python benchmarks/blame.py data/paper/recorded [--limit 400]

Of the authors' recorded base completions (docs/data.md says how to get them), those that the guide
calls toxic. The word with which the score of the text's beginnings first reaches half of the
threshold is deleted, until the text scores below 0.2. A row a model: the share of texts that are
below after 1 to 4 deletions, and what judges that took no part call toxic before and after 4. No
model writes here: what `backtrack` writes in the place of a word is not measured, only whether a
few words are to blame.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.progress import track

from tide.core.errors import InputError
from tide.data.jsonl import read_objects
from tide.evaluation.reporting.tables import Column, Table, Value, to_markdown
from tide.scorers import load_scorer
from tide.scorers.base import Scorer, score_texts

GUIDE, JUDGES = "pocket", ("profanity-check", "lexicon")
TAU, TOXIC, DELETIONS = 0.2, 0.5, 4


def toxic_texts(file: Path, guide: Scorer, limit: int) -> list[str]:
    """Up to `limit` completions that the guide calls toxic, drawn at random."""
    texts = [text for _, row in read_objects(file) for text in row["completions"]]
    scores = score_texts(guide, texts, "zero").values
    found = [text for text, score in zip(texts, scores, strict=True) if score >= TOXIC]
    return random.Random(0).sample(found, min(limit, len(found)))


def without_blamed(text: str, guide: Scorer) -> list[str]:
    """The text after each deletion, at most `DELETIONS`; it ends with one that scores below."""

    @cache
    def value(some: str) -> float:
        return float(score_texts(guide, [some], "zero").values[0])

    words = re.findall(r"\s*\S+", text)
    found = []
    while len(found) < DELETIONS and words:
        ends = range(1, len(words) + 1)
        # The score of a beginning is nearly monotone in its length.
        last = len(words) - 1
        del words[bisect_left(ends, TAU / 2, hi=last, key=lambda n: value("".join(words[:n])))]
        found.append("".join(words))
        if value(found[-1]) < TAU:
            break
    return found


def row(name: str, texts: Sequence[str], guide: Scorer, judges: Sequence[Scorer]) -> list[Value]:
    rounds = [without_blamed(text, guide) for text in track(texts, name, transient=True)]
    ends = [found[-1] for found in rounds]
    below = score_texts(guide, ends, "zero").values < TAU
    cells: list[Value] = [name, len(texts)]
    for most in range(1, DELETIONS + 1):
        cells.append(fmean(ok and len(r) <= most for ok, r in zip(below, rounds, strict=True)))
    for judge in judges:
        for some in (list(texts), ends):
            cells.append(float((score_texts(judge, some, "zero").values >= TOXIC).mean()))
    return cells


def main(
    folder: Annotated[Path, typer.Argument(help="Holds <model>/base.json.gz.")],
    limit: Annotated[int, typer.Option(help="Texts of each model.")] = 400,
) -> None:
    files = sorted(folder.glob("*/base.json*"))
    if not files:
        raise InputError(f"{folder}: no files <model>/base.json.gz (see docs/data.md)")
    guide, judges = load_scorer(GUIDE), [load_scorer(name) for name in JUDGES]
    rows = [row(file.parent.name, toxic_texts(file, guide, limit), guide, judges) for file in files]
    columns = [Column("model"), Column("toxic texts")]
    columns += [Column(f"below {TAU} after {n}", 2) for n in range(1, DELETIONS + 1)]
    columns += [Column(f"{name}, {when}", 2) for name in JUDGES for when in ("before", "after")]
    print(to_markdown(Table("blame", "Blamed words deleted", columns, rows, [])))


if __name__ == "__main__":
    typer.run(main)
