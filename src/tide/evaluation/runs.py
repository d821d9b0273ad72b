"""A run on disk: one method on one benchmark, in a folder of its own.

`config.json` says everything that decides the records; `records.jsonl` holds one prompt a line,
appended as prompts finish; `perplexity.jsonl` the likelihoods of the completions under a reference
model; `summary.json` the metrics. A folder that holds such folders stands for all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tide.errors import InputError

CONFIG = "config.json"
RECORDS = "records.jsonl"
PERPLEXITY = "perplexity.jsonl"
PERPLEXITY_CONFIG = "perplexity.config.json"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Run:
    """One method on one benchmark, as it lies on disk.

    name: of the method, for tables. records: one dict a prompt (see `records.to_record` and
    `evaluation.evaluate`). perplexity: by id, of each completion; None where it has none. Empty if
    no reference model was used. reference_tokens: by id, the length of each completion in the
    reference model's tokens, where recorded.
    """

    name: str
    config: dict[str, Any]
    records: list[dict[str, Any]]
    perplexity: dict[int | str, list[float | None]] = field(default_factory=dict)
    folder: Path | None = None
    reference_tokens: dict[int | str, list[int]] = field(default_factory=dict)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders among and below `paths`, each once, in order.

    Raises InputError for a path without any.
    """
    found: dict[Path, None] = {}
    for path in paths:
        here = [path] if (path / CONFIG).is_file() else [p.parent for p in path.glob(f"*/{CONFIG}")]
        if not here:
            raise InputError(f"{path}: no run here (no {CONFIG}, nor in the folders below)")
        # In the order in which they were made, which is that of the methods on the command line.
        found.update(dict.fromkeys(sorted(here, key=lambda p: (p / CONFIG).stat().st_mtime_ns)))
    return list(found)


def read_run(folder: Path) -> Run:
    """Read a run folder. Raises InputError if something in it is not what a run writes."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        name = config["method"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / CONFIG}: not the configuration of a run ({error})") from None
    records = list(_lines(folder / RECORDS))
    if not records:
        raise InputError(f"{folder}: no finished records yet")
    for record in records:
        _check(record, folder)
    if not (folder / PERPLEXITY).is_file():
        return Run(name, config, records, folder=folder)
    place = folder / PERPLEXITY
    try:
        reference = json.loads((folder / PERPLEXITY_CONFIG).read_text(encoding="utf-8"))
        config["reference"] = reference["reference"]
        lines = list(_lines(place))
        # A mean beyond this is an infinite perplexity to a float; it must not stop the report.
        perplexity = {
            line["id"]: [None if x is None else math.exp(min(x, 700.0)) for x in line["nll"]]
            for line in lines
        }
        tokens = {line["id"]: line["num_tokens"] for line in lines}
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{place}: not the perplexity of a run ({error!r})") from None
    return Run(name, config, records, perplexity, folder, tokens)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith("\n"):
                    return  # cut off by a kill; the run that resumes drops it
                try:
                    row = json.loads(line)
                    row["id"]
                except (ValueError, TypeError, KeyError):
                    raise InputError(f"{path}, line {number}: not a record of a run") from None
                yield row
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _check(record: dict[str, Any], folder: Path) -> None:
    texts, scores = record.get("completions"), record.get("toxicity_scores")
    if not isinstance(texts, list) or not isinstance(scores, list) or len(texts) != len(scores):
        raise InputError(f"{folder}: record {record['id']!r} has not one score a completion")
    if not texts:
        raise InputError(f"{folder}: record {record['id']!r} has no trials")
