"""The published record format, and our metrics beside the paper's printed numbers.

A published file is one JSON list, plain or gzipped, of one object a prompt: `id, prompt,
completions, toxicity_scores`, for a search also `num_iter_steps, cosine_sims`.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from tide.errors import InputError
from tide.evaluation.metrics import Estimate, check_records, summarize
from tide.evaluation.reporting.tables import Column, Table, Value, slug
from tide.evaluation.runs import Run

_FIELDS = (
    *("id", "prompt", "completions", "toxicity_scores", "num_iter_steps", "cosine_sims"),
    *("avg_toxicity", "max_toxicity"),
)
# Printed metric, heading and ours.
_PRINTED = (
    ("avg_max_toxicity", "max"),
    ("avg_mean_toxicity", "mean"),
    ("toxic_rate", "rate"),
)


def read_published(path: Path, *, scorer: str = "perspective") -> Run:
    """A file of published records as a run, named as the file.

    Where ids repeat (two of the published files number five prompts twice and all later ones five
    too low), no id of the file can be trusted, and each record gets its place in the file instead:
    the published runs went through the benchmark in its order. The recorded `max_toxicity` is not
    used; metrics start from the scores.

    Raises InputError for a file that does not hold such records.
    """
    try:
        open_file = gzip.open if path.suffix == ".gz" else open
        with open_file(path, "rt", encoding="utf-8") as file:
            records = json.load(file)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(records, list) or not records:
        raise InputError(f"{path}: not a list of records")
    for number, record in enumerate(records):
        _check(record, f"{path}: record {number}")
    if len({record["id"] for record in records}) < len(records):
        records = [{**record, "id": number} for number, record in enumerate(records)]
    name = path.name.removesuffix(".gz").removesuffix(".json")
    run = Run(name, {"method": name, "scorer": scorer, "judges": []}, records, folder=path)
    check_records(run)
    return run


def write_published(run: Run, path: Path) -> None:
    """Write the records of `run` in the published format, gzipped if `path` ends in `.gz`."""
    records = [
        {name: record[name] for name in _FIELDS if name in record}
        | {
            "avg_toxicity": sum(record["toxicity_scores"]) / len(record["toxicity_scores"]),
            "max_toxicity": max(record["toxicity_scores"]),
        }
        for record in run.records
    ]
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "wt", encoding="utf-8") as file:
            json.dump(records, file, ensure_ascii=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


def paper_tables(folder: Path) -> list[Table]:
    """Our metrics on `folder/recorded/<model>/<method>.json.gz` beside `folder/tables.json`.

    One table a model, and one of the iterations. The small differences that remain are the
    published script's filter, which leaves out completions of other than 20 tokens of the
    perplexity model. Raises InputError if files are missing or one belongs to no printed row.
    """
    try:
        printed = json.loads((folder / "tables.json").read_text(encoding="utf-8"))["rtp"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'tables.json'}: not the paper's tables ({error})") from None
    files = sorted((folder / "recorded").glob("*/*.json*"))
    if not files:
        raise InputError(f"{folder / 'recorded'}: no files <model>/<method>.json.gz")
    toxicity: dict[str, list[list[Value]]] = {}
    iterations: list[list[Value]] = []
    for file in files:
        run, model = read_published(file), file.parent.name
        method = printed_row(run.name, printed.get(model, {}))
        if method is None:
            raise InputError(f"{file}: the paper's table has no row for it")
        row, summary = printed[model][method], summarize(run)
        (ours,) = summary.toxicity.values()
        cells: list[Value] = [method]
        for key, name in _PRINTED:
            cells += _beside(ours[name], row[key])
        toxicity.setdefault(model, []).append(cells)
        if "iterations" in summary.averages:
            cells = [method, *_beside(summary.averages["iterations"], row["mean_iterations"])]
            iterations.append([model, *cells])
    columns = [Column("method")]
    for _, name in _PRINTED:
        columns += _columns(name, 3)
    notes = ["from all recorded completions, beside the printed numbers; diff: ours minus paper"]
    return [
        *(
            Table(f"paper-{slug(model)}", f"RTP-challenging, {model}", columns, rows, notes)
            for model, rows in toxicity.items()
        ),
        Table(
            "paper-iterations",
            "RTP-challenging, mean iterations",
            [Column("model"), Column("method"), *_columns("K-bar", 2)],
            iterations,
        ),
    ]


def _columns(heading: str, digits: int) -> list[Column]:
    return [
        Column(heading, digits),
        Column("paper", digits, key=f"{heading} paper"),
        Column("diff", digits, form="signed", key=f"{heading} diff"),
    ]


def _beside(ours: Estimate, printed: float) -> list[Value]:
    return [ours.value, printed, ours.value - printed]


def printed_row(file_name: str, rows: dict[str, Any]) -> str | None:
    """The row of a printed table that a recorded file belongs to; None if there is none.

    `base` is "Base model", `toxificationreversal` "Toxification Reversal", and the number at the
    end is beta: `rad-aisteer-75` is "RAD (beta=75)".
    """
    name, _, beta = file_name.lower().partition("-")
    wanted = name + "".join(re.findall(r"\d+$", beta))
    for row in rows:
        if re.sub(r"[^a-z0-9]|beta|model", "", row.lower()) == wanted:
            return row
    return None


def _check(record: Any, here: str) -> None:
    if not isinstance(record, dict) or not isinstance(record.get("id"), int | str):
        raise InputError(f"{here}: not an object with an id")
    if not isinstance(record.get("prompt"), str):
        raise InputError(f"{here}: no text field 'prompt'")
    texts, scores = record.get("completions"), record.get("toxicity_scores")
    if not isinstance(texts, list) or not isinstance(scores, list) or not texts:
        raise InputError(f"{here}: no lists of 'completions' and 'toxicity_scores'")
    if not all(isinstance(score, int | float) and 0 <= score <= 1 for score in scores):
        raise InputError(f"{here}: a toxicity score is not a number in [0, 1]")
