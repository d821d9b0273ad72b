"""The published record format, and our metrics beside the paper's printed numbers.

A published file is one JSON list, plain or gzipped, of one object a prompt: `id, prompt,
completions, toxicity_scores`, for a search also `num_iter_steps, cosine_sims`.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tide.core.errors import InputError
from tide.data.files import replaced
from tide.data.jsonl import read_object, read_objects
from tide.data.records import Part, merged
from tide.evaluation.judges import judged, measured
from tide.evaluation.metrics import Estimate, Summary, check_records, summarize
from tide.evaluation.perplexity import Reference
from tide.evaluation.reporting.tables import Column, Table, Value, slug
from tide.evaluation.runs import Run
from tide.scorers import Scorer

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
    too low), no id of the file can be trusted, and each record gets its number in the file instead:
    the published runs went through the benchmark in its order. The recorded `max_toxicity` is not
    used; metrics start from the scores.

    Raises InputError for a file that does not hold such records.
    """
    rows = list(read_objects(path))
    if not rows:
        raise InputError(f"{path}: holds no records")
    repeats = len({str(row.get("id")) for _, row in rows}) < len(rows)
    records = []
    for number, (where, row) in enumerate(rows):
        known = {name: row[name] for name in _FIELDS if name in row}
        if repeats:
            known["id"] = number
        records.append(merged([Part(where, known)]))
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    run = Run(name, {"method": name, "scorer": {"spec": None, "name": scorer}}, records, path)
    check_records(run)
    return run


def write_published(run: Run, path: Path) -> None:
    """Write the records of `run` in the published format, gzipped if `path` ends in `.gz`."""
    records = [record.model_dump(include={*_FIELDS}, exclude_none=True) for record in run.records]
    text = json.dumps(records, ensure_ascii=False)
    with replaced(path) as file:
        file.write(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def paper_tables(folder: Path) -> list[Table]:
    """Our metrics on `folder/recorded/<model>/<method>.json.gz` beside `folder/tables.json`.

    One table a model, and one of the iterations. The small differences that remain are the
    published script's filter, which leaves out completions of other than 20 tokens of the
    perplexity model. Raises InputError if files are missing or one belongs to no printed row.
    """
    printed = read_object(folder / "tables.json").get("rtp")
    if not isinstance(printed, dict):
        raise InputError(f"{folder / 'tables.json'}: not the paper's tables")
    files = _recorded(folder)
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


def judged_tables(
    folder: Path, judges: Sequence[Scorer], references: Sequence[Reference] = ()
) -> list[Table]:
    """The recorded completions of `folder` by scorers that their search never saw; one a model.

    judges: an empty completion counts 0.0, as it did for the authors. references: models that
    measure perplexity. Raises InputError without files, and as `score_texts` and `measure`.
    """
    by_model: dict[str, list[Summary]] = {}
    named = [{"spec": None, "name": judge.name} for judge in judges]
    for file in _recorded(folder):
        run = read_published(file)
        records = run.records
        for judge in judges:
            records = judged(records, judge, "zero")
        for reference in references:
            records = measured(records, reference)
        config = {**run.config, "judges": named, "references": [one.name for one in references]}
        run = replace(run, config=config, records=records)
        by_model.setdefault(file.parent.name, []).append(summarize(run))
    made = []
    for model, summaries in by_model.items():
        sources = list(summaries[0].toxicity)
        columns = [Column("method")]
        for number, source in enumerate(sources):
            behind = f" {number}" if number else ""
            columns += [Column(f"rate{behind}", 3, interval=True, key=f"rate by {source}")]
            columns += [Column(f"mean{behind}", 3, key=f"mean by {source}")]
        for reference in references:
            heading = f"ppl {Path(reference.name).name}" if len(references) > 1 else "ppl"
            columns += [Column(heading, 2, key=f"median perplexity by {reference.name}")]
        rows: list[list[Value]] = []
        for one in summaries:
            cells: list[Value] = [one.method]
            for source in sources:
                cells += [one.toxicity[source]["rate"], one.toxicity[source]["mean"]]
            rows.append([*cells, *(one.fluency[each.name].median for each in references)])
        notes = [
            f"rate: share of prompts with a toxic completion, by {sources[0]} (searched on)",
            "; ".join(f"rate {i}: by {name}" for i, name in enumerate(sources) if i),
            "± half of the 95 % bootstrap interval over prompts; ppl: median perplexity",
        ]
        title = f"RTP-challenging, {model}, recorded completions judged again"
        made.append(Table(f"paper-{slug(model)}-judged", title, columns, rows, notes))
    return made


def _recorded(folder: Path) -> list[Path]:
    files = sorted((folder / "recorded").glob("*/*.json*"))
    if not files:
        raise InputError(f"{folder / 'recorded'}: no files <model>/<method>.json.gz")
    return files


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
