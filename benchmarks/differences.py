"""What each choice of the published runs changes, one at a time, and all of them together.

    python benchmarks/differences.py [--limit 1199] [--recorded data/paper/recorded]

Every row is `tide` with one choice of `--protocol published` (docs/published.md says what they are)
on RealToxicityPrompts-challenging, three trials; the last rows have all of them, with and without
the carrying over of the best from trial to trial, which costs nothing and is computed from the same
records. --recorded: what the authors' own records say of it, from their folder. Runs are kept in
`benchmarks/results/differences` and go on where they were stopped. 30 prompts take 80 seconds of a
core, all 1199 about an hour.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from tide.data.records import read_records
from tide.evaluation import Bars, evaluate
from tide.evaluation.metrics import summarize
from tide.evaluation.reporting.tables import Column, Table, Value, to_markdown
from tide.evaluation.runs import RECORDS, Run, carried

RESULTS = Path(__file__).resolve().parent / "results" / "differences"
CHOICES = (
    *("unresolved=iterate", "unresolved=last", "baseline=fresh", "redraw=true", "perturb=all"),
    *("select=nearest", "empty_policy=unmodified"),
)
JUDGE = "profanity-check"


def row(name: str, run: Run) -> list[Value]:
    found = summarize(run)
    judge = next(source for source in found.toxicity if source.startswith(JUDGE))
    own = found.toxicity[run.scorer]
    costs = [found.averages[key] for key in ("iterations", "evaluations", "unresolved")]
    return [name, own["max"], own["mean"], own["rate"], found.toxicity[judge]["rate"], *costs]


def recorded(folder: Path) -> Table:
    """Of each model: how the scores run from trial to trial, and what the maximum of three is."""
    rows: list[list[Value]] = []
    for file in sorted(folder.glob("*/tide.json.gz")):
        records: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))
        scores = [record["toxicity_scores"] for record in records]
        texts = [record["completions"] for record in records]
        rows.append(
            [
                file.parent.name,
                fmean(max(some) for some in scores),
                *(fmean(some[trial] for some in scores) for trial in range(3)),
                fmean(any(b > a for a, b in pairwise(some)) for some in scores),
                *(fmean(some[trial] == some[trial - 1] for some in texts) for trial in (1, 2)),
            ]
        )
    headings = ("avg max", "trial 1", "trial 2", "trial 3", "rises", "2 repeats 1", "3 repeats 2")
    columns = [Column("model"), *(Column(heading, 3) for heading in headings)]
    return Table("recorded", "The authors' records of TIDE: average toxicity", columns, rows)


def main(
    limit: Annotated[int | None, typer.Option()] = None,
    recorded_runs: Annotated[Path | None, typer.Option("--recorded")] = None,
) -> None:
    common: dict[str, Any] = {"judges": JUDGE, "limit": limit, "reference": "none"}
    methods = ["tide", *(f"tide:{choice}" for choice in CHOICES)]
    runs = evaluate("rtp", methods, out=RESULTS / "tide", progress=Bars(), **common)
    options = {"protocol": "published", "out": RESULTS / "published", "progress": Bars()}
    (published,) = evaluate("rtp", ["tide"], **options, **common)
    assert published.path is not None
    alone = replace(published, records=read_records(published.path / RECORDS))
    over = replace(runs[0], records=[carried(record) for record in runs[0].records])
    rows = [row(name, run) for name, run in zip(methods, runs, strict=True)]
    rows.append(row("tide, best carried over", over))
    rows.append(row("published, without carrying over", alone))
    rows.append(row("published", published))
    columns = [
        Column("method"),
        *(Column(heading, 3, interval=True) for heading in ("avg max", "avg mean", "toxic rate")),
        Column("rate by judge", 3, interval=True),
        Column("K-bar", 2),
        Column("evals", 1),
        Column("unresolved", 3),
    ]
    title = f"rtp, pocket, {len(published.records)} prompts, three trials"
    print(to_markdown(Table("differences", title, columns, rows)))
    if recorded_runs is not None:
        print(to_markdown(recorded(recorded_runs)))


if __name__ == "__main__":
    typer.run(main)
