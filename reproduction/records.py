"""Print facts from the authors' records of their runs that `reproduction/paper.py` does not print.

    python reproduction/records.py data/paper/recorded

Needs no model; takes a minute. docs/data.md says how to fill the folder. Prints four tables with a
row per model: TIDE's scores from trial to trial; its iterations and cosines; the nearest tokens of
its points, and the number of prompts for choosing settings; and the rule for empty completions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import typer

from tide.core.errors import InputError, TideError
from tide.data.files import read_whole
from tide.detoxifier.presets import PUBLISHED
from tide.evaluation.tables import Column, Table, Value, to_markdown
from tide.scorers.base import is_nearly_empty

Records = list[dict[str, Any]]
TITLE = "The authors' records of TIDE"
# Gemma multiplies its embeddings by the square root of their dimension. The published step is for
# the embeddings before that.
GEMMA_SCALE = 48.0
ABOVE = 0.9  # mean toxicity of the prompts on which the paper chose its settings


def read(file: Path) -> Records:
    """Read the authors' list of objects, one per prompt."""
    rows: Records = json.loads(read_whole(file))
    return rows


def searches(folder: Path) -> dict[str, Records]:
    """Read TIDE's records, by model. Raises InputError if the folder holds no records of TIDE."""
    by_model = {file.parent.name: read(file) for file in sorted(folder.glob("*/tide.json*"))}
    if not by_model:
        raise InputError(
            f"{folder}: no files <model>/tide.json.gz (docs/data.md says how to get them)"
        )
    return by_model


def carried(models: dict[str, Records]) -> Table:
    """Return a table of the average toxicity by trial, and of the maximum of all trials."""
    rows: list[list[Value]] = []
    for model, records in models.items():
        scores = [record["toxicity_scores"] for record in records]
        texts = [record["completions"] for record in records]
        trials = range(len(scores[0]))
        rows.append(
            [
                *(model, len(records), fmean(max(some) for some in scores)),
                *(fmean(some[trial] for some in scores) for trial in trials),
                sum(any(b > a for a, b in pairwise(some)) for some in scores),
                *(fmean(some[trial] == some[trial - 1] for some in texts) for trial in trials[1:]),
            ]
        )
    trials = range(1, (len(rows[0]) - 3) // 2 + 1)
    headings = ["avg max", *(f"trial {i}" for i in trials), "rises"]
    headings += [f"{i} repeats {i - 1}" for i in trials[1:]]
    columns = [Column("model"), Column("prompts"), *(Column(heading, 3) for heading in headings)]
    notes = ["rises: prompts in which a trial scores higher than the one before"]
    return Table("carried", f"{TITLE}: average toxicity by trial", columns, rows, notes)


def searched(models: dict[str, Records]) -> Table:
    """Return a table of iterations, cosines to the prompt, and the row norms that they imply."""
    rows: list[list[Value]] = []
    for model, records in models.items():
        steps = [record["num_iter_steps"] for record in records]
        cosines = [record["cosine_sims"] for record in records]
        at_once = [
            cosine
            for some, count in zip(cosines, steps, strict=True)
            for cosine, step in zip(some, count, strict=True)
            if step == 1
        ]
        first = median(at_once)
        rows.append(
            [
                *(model, fmean(map(fmean, steps)), fmean(some[0] for some in steps)),
                *(len(at_once) / sum(map(len, steps)), first, min(map(min, cosines))),
                fmean(record["toxicity_scores"][0] >= 0.5 for record in records),
                row_norm(model, first),
            ]
        )
    columns = [
        *(Column("model"), Column("K-bar", 2), Column("trial 1", 2), Column("K = 1", 3)),
        *(Column("cos at K = 1", 3), Column("least cos", 3), Column("unresolved", 3)),
        Column("row norm", 2),
    ]
    notes = [
        "K = 1: share of trials whose first completion was accepted; cos at K = 1: the median of "
        "their recorded cosines (the returned point is the prompt itself, with cosine 1)",
        "unresolved: first trials that end at 0.5 or more",
        "row norm: norm of a prompt's rows that gives this cosine after one step of the published "
        "length",
    ]
    return Table("searched", f"{TITLE}: iterations and cosines", columns, rows, notes)


def row_norm(model: str, cosine: float) -> float | None:
    """Return the norm r of a row for which cos(X1, X0) = r / sqrt(r^2 + eta^2)."""
    if model not in PUBLISHED or not 0 < cosine < 1:
        return None
    step = PUBLISHED[model]["step_size"] / (GEMMA_SCALE if model.startswith("gemma") else 1.0)
    return float(step * cosine / math.sqrt(1 - cosine**2))


def decoded(models: dict[str, Records], folder: Path) -> Table:
    """Return a table of the last points' nearest tokens and the unmodified model's completions."""
    rows: list[list[Value]] = []
    for model, records in models.items():
        same = sum(record["final_prompt"].endswith(record["prompt"]) for record in records)
        row: list[Value] = [model, len(records), same, len(records) - same]
        base = next(folder.glob(f"{model}/base.json*"), None)
        if base is not None:
            base_records = read(base)
            texts = [text for record in base_records for text in record["completions"]]
            row += [sum(fmean(record["toxicity_scores"]) > ABOVE for record in base_records)]
            row += [sum("Okay" in text or "the user" in text for text in texts)]
        rows.append([*row, *([None] * (6 - len(row)))])
    columns = [Column(name) for name in ("model", "prompts", "same tokens", "other")]
    columns += [Column(f"above {ABOVE}"), Column("as assistant")]
    notes = [
        "same tokens: prompts whose recorded nearest tokens are the prompt, after a token that "
        "begins a text",
        f"above {ABOVE}: prompts on which the completions of the model itself have a higher mean "
        "score; the paper chose its settings on these",
        'as assistant: completions of the model itself that hold "Okay" or "the user"',
    ]
    return Table("decoded", f"{TITLE}: nearest tokens, and the model itself", columns, rows, notes)


def emptiness(files: Sequence[Path]) -> Table:
    """Compare the published rule for empty completions with ours, on all recorded completions."""
    rows: list[list[Value]] = []
    for model in dict.fromkeys(file.parent.name for file in files):
        texts = [
            text
            for file in files
            if file.parent.name == model
            for record in read(file)
            for text in record["completions"]
        ]
        theirs = [len(text.strip()) < 3 for text in texts]
        ours = list(map(is_nearly_empty, texts))
        differ = sum(a != b for a, b in zip(theirs, ours, strict=True))
        rows.append([model, len(texts), sum(theirs), sum(ours), differ])
    rows.append(["all", *(sum(int(str(row[i])) for row in rows) for i in range(1, 5))])
    columns = [Column(name) for name in ("model", "completions", "published", "ours", "differ")]
    notes = [
        "published: fewer than 3 characters when stripped; ours: fewer than 3 visible ones of "
        "ASCII, and none of another script"
    ]
    return Table("emptiness", "Recorded completions that count as empty", columns, rows, notes)


def main(folder: Annotated[Path, typer.Argument(help="Holds <model>/<method>.json.gz.")]) -> None:
    models = searches(folder)
    files = sorted(folder.glob("*/*.json*"))
    for table in (carried(models), searched(models), decoded(models, folder), emptiness(files)):
        print(to_markdown(table))


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
