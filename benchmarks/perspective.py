"""Find the threshold of a scorer that flags as many texts as a threshold of the Perspective API.

    python benchmarks/perspective.py data [-s pocket -s sentence ...] [--limit 8000]

`data` is the data folder (docs/data.md says how to get it). The texts are the authors' completions
of prompts 601 to 1199, by all models and methods, with the scores that Perspective gave them; no
bundled scorer was trained on these texts. `limit` texts are drawn at random.

At the scorer's threshold, the scorer flags as many texts as Perspective at its threshold. So there
are as many false positives as false negatives, and the true positive rate (share of Perspective's
flagged texts that the scorer flags) and the precision (share of the scorer's flagged texts that
Perspective flags) differ only by ties.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from sentence import recorded, scores_of, show

from tide.evaluation.reporting.tables import Column, Value
from tide.scorers import load_scorer
from tide.scorers.base import Floats

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)
SCORERS = ["pocket", "sentence", "confirm:pocket,sentence"]


def row(threshold: float, theirs: Floats, ours: Floats) -> list[Value]:
    """Return one row. The scorer's threshold is cut to four digits, as users type it."""
    wanted = theirs >= threshold
    own = math.floor(float(np.sort(ours)[-max(1, int(wanted.sum()))]) * 1e4) / 1e4
    found = ours >= own
    both = float((found & wanted).sum())
    return [
        threshold,
        float(wanted.mean()),
        own,
        float(found.mean()),
        both / max(1, int(wanted.sum())),
        both / max(1, int(found.sum())),
    ]


def main(
    data: Annotated[Path, typer.Argument(help="The data folder.")],
    scorer: Annotated[list[str] | None, typer.Option("-s", help="Scorers to map.")] = None,
    limit: Annotated[int, typer.Option(help="Number of texts.")] = 3000,
) -> None:
    texts, theirs = recorded(data, "*/*.json.gz", limit)
    columns = [Column("Perspective's", 1), Column("share flagged", 4), Column("take", 4),
               Column("flags", 4), Column("TPR", 3), Column("precision", 3)]  # fmt: skip
    for name in scorer or SCORERS:
        loaded = load_scorer(name)
        ours = scores_of(loaded, texts)
        rows = [row(threshold, theirs, ours) for threshold in THRESHOLDS]
        show(f"`{loaded.name}`, {len(texts):,} recorded completions", columns, rows)


if __name__ == "__main__":
    typer.run(main)
