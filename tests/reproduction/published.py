"""Writes runs in the authors' record format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.rows import write_rows
from tide.data.records import Record
from tide.evaluation import Run


def to_published(record: Record) -> dict[str, Any]:
    """The authors' object for a record. A list that lacks a trial's value is left out."""
    lists = {
        "completions": [trial.text for trial in record.trials],
        "toxicity_scores": [trial.toxicity for trial in record.trials],
        "num_iter_steps": [trial.iterations for trial in record.trials],
        "cosine_sims": [trial.cosine for trial in record.trials],
    }
    known = {name: values for name, values in lists.items() if None not in values}
    return {"id": record.id, "prompt": record.prompt, **known}


def export(run: Run, file: Path) -> None:
    write_rows(file, [to_published(record) for record in run.records])
