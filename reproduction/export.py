"""Write a run in the published record format: a JSON list with one object per prompt.

python reproduction/export.py runs/rtp-pocket/tide tide.json.gz
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from tide import TideError
from tide.data.records import Record
from tide.evaluation import Run, read_run

# The list of each field of a trial.
LISTS = {
    "text": "completions",
    "toxicity": "toxicity_scores",
    "iterations": "num_iter_steps",
    "cosine": "cosine_sims",
}


def to_published(record: Record) -> dict[str, Any]:
    """Convert a record to a published object, without lists that lack a value of any trial."""
    about = {"id": record.id, "prompt": record.prompt}
    lists = {}
    for field, name in LISTS.items():
        values = [getattr(trial, field) for trial in record.trials]
        if None not in values:
            lists[name] = values
    scores = [trial.toxicity for trial in record.trials]
    averages = {"avg_toxicity": fmean(scores), "max_toxicity": max(scores)}
    return {**about, **lists, **averages}


def export(run: Run, file: Path) -> None:
    """Write `run` to `file`, gzipped if the name ends in `.gz`."""
    rows = [to_published(record) for record in run.records]
    text = json.dumps(rows, ensure_ascii=False).encode()
    file.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


def main(
    run: Annotated[Path, typer.Argument(help="A run: a folder, or a .jsonl file.")],
    file: Annotated[Path, typer.Argument(help="File to write: .json or .json.gz.")],
) -> None:
    export(read_run(run), file)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
