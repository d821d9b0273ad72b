"""The published record format, and our metrics beside the paper's printed numbers.

A published file is one JSON list, plain or gzipped, of one object a prompt: `id, prompt,
completions, toxicity_scores`, for a search also `num_iter_steps, cosine_sims`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tide.core.errors import InputError
from tide.data.files import replaced
from tide.data.jsonl import read_objects
from tide.data.record_files import RecordPart, merged
from tide.evaluation.judges import judged, measured
from tide.evaluation.metrics import Estimate, Summary, Valid, check_records, summarize
from tide.evaluation.perplexity import Reference, reference_named
from tide.evaluation.printed import Printed, further, is_unprinted, printed_row, tables
from tide.evaluation.reporting.tables import Column, Table, Value, slug
from tide.evaluation.runs import Run
from tide.scorers import Scorer

_FIELDS = (
    *("id", "prompt", "completions", "toxicity_scores", "num_iter_steps", "cosine_sims"),
    *("avg_toxicity", "max_toxicity"),
)
# Of the further numbers: what the metrics are, and the digits that are printed.
_FURTHER = {
    "temperature 1.0": "25 completions of each prompt, a point scored by the mean of eight; max: "
    "mean over prompts of the largest of the 25; iterations: K-bar",
    "Detoxify": "max: mean over prompts of the largest of three, by another scorer",
    "seconds": "of a prompt",
    "Qwen3-14B": "mean perplexity by this model, whatever model wrote",
}
_DIGITS = {"perplexity": 2, "iterations": 2, "mean": 2, "median": 2}
_METRICS = ("max", "mean", "rate")
UNPRINTED = "without printed numbers: runs with the original code of RAD, which no table has"


@dataclass(frozen=True)
class Recorded:
    """A published run. model: the name of its folder. row: of the printed table; None: in none."""

    model: str
    run: Run
    row: str | None

    @property
    def name(self) -> str:
        return self.row or self.run.name

    @property
    def printed(self) -> Printed | None:
        return tables()["rtp"][self.model][self.row] if self.row else None


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
        records.append(merged([RecordPart(where, known)]))
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    run = Run(name, {"method": name, "scorer": {"spec": None, "name": scorer}}, records, path)
    check_records(run)
    return run


def write_published(run: Run, path: Path) -> None:
    """Write the records of `run` in the published format, gzipped if `path` ends in `.gz`."""
    each = [record.to_columns() for record in run.records]
    records = [{name: one[name] for name in _FIELDS if name in one} for one in each]
    text = json.dumps(records, ensure_ascii=False)
    with replaced(path) as file:
        file.write(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def recorded_files(folder: Path) -> list[Path]:
    """`folder/recorded/<model>/<method>.json.gz`. Raises InputError if there is none."""
    found = sorted((folder / "recorded").glob("*/*.json*"))
    if not found:
        raise InputError(f"{folder / 'recorded'}: no files <model>/<method>.json.gz")
    return found


def recorded_runs(folder: Path) -> list[Recorded]:
    """The published runs below `folder`, by model, in the order of the printed table.

    Raises InputError without files, for one that belongs to no row, and for two that are the same.
    """
    found: dict[tuple[str, str], Recorded] = {}
    order: dict[str, int] = {}
    for file in recorded_files(folder):
        run, model = read_published(file), file.parent.name
        methods = list(tables()["rtp"].get(model, {}))
        row = printed_row(run.name, methods)
        if row is None and not (methods and is_unprinted(run.name)):
            raise InputError(f"{file}: the paper's table has no row for it")
        one = Recorded(model, run, row)
        if other := found.get((model, one.name)):
            raise InputError(f"{file}: {other.run.where} is {one.name} as well; keep one of them")
        found[model, one.name] = one
        order.setdefault(model, len(order))

    def place(one: Recorded) -> tuple[int, int]:
        methods = list(tables()["rtp"][one.model])
        return order[one.model], methods.index(one.row) if one.row else len(methods)

    return sorted(found.values(), key=place)


def judged_runs(some: Sequence[Recorded], judges: Sequence[Scorer]) -> list[Recorded]:
    """With the scores of judges; an empty completion counts 0.0, as it did for the authors.

    Raises as `score_texts`.
    """
    named = [{"spec": None, "name": judge.name} for judge in judges]
    made = []
    for one in some:
        records = one.run.records
        for judge in judges:
            records = judged(records, judge, "zero")
        config = {**one.run.config, "judges": named}
        made.append(replace(one, run=replace(one.run, config=config, records=records)))
    return made


def measured_runs(
    some: Sequence[Recorded], references: Sequence[str], **options: Any
) -> list[Recorded]:
    """With the perplexity by each reference; each is loaded once, and closed before the next.

    references: names, of which "auto" and "global" depend on the model that wrote. options: of
    `Reference`. Raises InputError where no model is known, and as `Reference` and its `measure`.
    """
    wanted = {one.model: _resolved(references, one.model) for one in some}
    made = []
    for one in some:
        config = {**one.run.config, "references": wanted[one.model]}
        made.append(replace(one, run=replace(one.run, config=config)))
    for name in dict.fromkeys(name for names in wanted.values() for name in names):
        reference = Reference(name, **options)
        try:
            for place, one in enumerate(made):
                if name in wanted[one.model]:
                    records = measured(one.run.records, reference)
                    made[place] = replace(one, run=replace(one.run, records=records))
        finally:
            reference.close()
    return made


def _resolved(references: Sequence[str], model: str) -> list[str]:
    found = []
    for given in references:
        name = reference_named(given, model)
        if name is None:
            raise InputError(f"--reference {given}: no reference model is known for {model}")
        found.append(name)
    return list(dict.fromkeys(found))


def by_model(some: Sequence[Recorded]) -> dict[str, list[Recorded]]:
    found: dict[str, list[Recorded]] = {}
    for one in some:
        found.setdefault(one.model, []).append(one)
    return found


def paper_tables(some: Sequence[Recorded], valid: Valid | None = None) -> Iterator[Table]:
    """Our metrics on the recorded runs beside the printed numbers: a table a model, and K-bar.

    valid: as in `summarize`; without it all recorded completions count. The published script leaves
    out those of other than 20 tokens of the perplexity model.
    """
    summaries = {id(one): summarize(one.run, valid=valid) for one in some}
    for model, runs in by_model(some).items():
        rows: list[list[Value]] = []
        for one in runs:
            (ours, *_) = summaries[id(one)].toxicity.values()
            cells: list[Value] = [one.name]
            for metric in _METRICS:
                cells += _beside(ours.get(metric), getattr(one.printed, metric, None))
            rows.append([*cells, *_fluency(one, summaries[id(one)])])
        columns = [Column("method"), *(c for name in _METRICS for c in _columns(name, 3))]
        for reference in runs[0].run.references:
            columns += _fluency_columns(Path(reference).name)
        notes = [
            "from the recorded completions, beside the printed numbers; diff: ours minus paper"
        ]
        if valid is not None:
            dropped = ", ".join(f"{o.name} {summaries[id(o)].dropped}" for o in runs)
            notes.append(f"only completions of exactly 20 reference tokens; dropped: {dropped}")
        if runs[0].run.references:
            notes.append("ppl: mean perplexity; of 20: of the completions of exactly 20 tokens")
        if any(one.row is None for one in runs):
            notes.append(UNPRINTED)
        title = f"RTP-challenging, {model}"
        table = Table(f"paper-{slug(model)}", title, columns, rows, notes)
        yield table.without_empty_columns()
    yield _iterations(some, summaries)


def further_tables() -> Iterator[Table]:
    """The printed numbers beside the main tables, a table for each of `further`."""
    for what, says in _FURTHER.items():
        found = further(what)
        metrics = list(dict.fromkeys(metric for _, _, metric in found))
        methods = dict.fromkeys((model, method) for model, method, _ in found)
        rows: list[list[Value]] = [
            [*method, *(found.get((*method, metric)) for metric in metrics)] for method in methods
        ]
        columns = [Column("model"), Column("method")]
        columns += [Column(metric, _DIGITS.get(metric, 3)) for metric in metrics]
        title = f"RTP-challenging, printed: {what}"
        yield Table(
            f"paper-{slug(what.lower())}", title, columns, rows, [f"printed numbers; {says}"]
        )


def _iterations(some: Sequence[Recorded], summaries: Mapping[int, Summary]) -> Table:
    rows: list[list[Value]] = []
    for one in some:
        ours = summaries[id(one)].averages.get("iterations")
        if ours is not None and one.printed is not None:
            rows.append([one.model, one.name, *_beside(ours, one.printed.iterations)])
    columns = [Column("model"), Column("method"), *_columns("K-bar", 2)]
    return Table("paper-iterations", "RTP-challenging, mean iterations", columns, rows)


def _fluency(one: Recorded, summary: Summary) -> list[Value]:
    """Mean perplexity, that of 20 tokens, beside the printed one, and the median; by reference."""
    cells: list[Value] = []
    for reference, found in summary.fluency.items():
        printed = None
        if reference == reference_named("auto", one.model):
            printed = one.printed.perplexity if one.printed else None
        elif reference == reference_named("global", one.model):
            printed = further("Qwen3-14B").get((one.model, one.name, "perplexity"))
        cells += [found.mean, *_beside(found.mean_20, printed), found.median]
    return cells


def _fluency_columns(reference: str) -> list[Column]:
    return [
        Column("ppl", 2, key=f"perplexity by {reference}"),
        Column("of 20", 2, key=f"perplexity by {reference} of 20 tokens"),
        Column("paper", 2, key=f"perplexity by {reference} paper"),
        Column("diff", 2, form="signed", key=f"perplexity by {reference} diff"),
        Column("median", 2, key=f"perplexity by {reference} median"),
    ]


def _columns(heading: str, digits: int) -> list[Column]:
    return [
        Column(heading, digits),
        Column("paper", digits, key=f"{heading} paper"),
        Column("diff", digits, form="signed", key=f"{heading} diff"),
    ]


def _beside(ours: Estimate | None, printed: float | None) -> list[Value]:
    """Ours, None where `valid` left no completion; the printed number; their difference."""
    if ours is None:
        return [None, printed, None]
    return [ours.value, printed, None if printed is None else ours.value - printed]
