"""Measure the effect of each choice of the published runs, alone and together.

    python benchmarks/differences.py [--limit 1199] [--recorded data/paper/recorded]

Each row is `tide` with one choice of the published code, of the paper's text or of the authors'
notebook (docs/published.md explains them), on RealToxicityPrompts-challenging with three trials.
The last rows combine the choices: the protocol `published`, with and without carrying the best
completion over from trial to trial (computed from the same records), and the protocol `paper`.
--recorded FOLDER adds a table of the trials in the authors' own records. Runs are kept in
`benchmarks/results/differences` and resumed. 40 prompts take about five minutes on one core, all
1199 about thirty times as long.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from records import carried as recorded
from records import searches

from tide.core.errors import TideError
from tide.data.record_files import read_records
from tide.evaluation import Bars, evaluate
from tide.evaluation.metrics import summarize
from tide.evaluation.reporting.tables import Column, Table, Value, to_markdown
from tide.evaluation.runs import RECORDS, Run, carried

RESULTS = Path(__file__).resolve().parent / "results" / "differences"
CHOICES = (
    *("unresolved=iterate", "unresolved=last", "baseline=fresh", "redraw=true", "perturb=all"),
    *("select=nearest", "empty_policy=unmodified"),
    # of the paper's text
    *("normalization=matrix", "projection=nearest", "test_prompt=false"),
    # of the authors' notebook
    *("cosine_threshold=0.35", "cosine_threshold=0.35,temperature=0.05"),
)
JUDGE = "profanity-check"


def row(name: str, run: Run) -> list[Value]:
    found = summarize(run)
    judge = next(source for source in found.toxicity if source.startswith(JUDGE))
    own = found.toxicity[run.scorer]
    costs = [found.averages[key] for key in ("iterations", "evaluations", "unresolved", "empty")]
    return [name, own["max"], own["mean"], own["rate"], found.toxicity[judge]["rate"], *costs]


def main(
    limit: Annotated[int | None, typer.Option()] = None,
    recorded_runs: Annotated[Path | None, typer.Option("--recorded")] = None,
) -> None:
    models = None if recorded_runs is None else searches(recorded_runs)
    common: dict[str, Any] = {"judges": JUDGE, "limit": limit, "reference": "none"}
    methods = ["tide", *(f"tide:{choice}" for choice in CHOICES)]
    runs = evaluate("rtp", methods, out=RESULTS / "tide", progress=Bars(), **common)
    options = {"protocol": "published", "out": RESULTS / "published", "progress": Bars()}
    (published,) = evaluate("rtp", ["tide"], **options, **common)
    options |= {"protocol": "paper", "out": RESULTS / "paper"}
    (paper,) = evaluate("rtp", ["tide"], **options, **common)
    assert published.path is not None
    alone = replace(published, records=read_records(published.path / RECORDS))
    over = replace(runs[0], records=[carried(record) for record in runs[0].records])
    rows = [row(name, run) for name, run in zip(methods, runs, strict=True)]
    rows.append(row("tide, best carried over", over))
    rows.append(row("published, without carrying over", alone))
    rows.append(row("published", published))
    rows.append(row("paper", paper))
    columns = [
        Column("method"),
        *(Column(heading, 3, interval=True) for heading in ("avg max", "avg mean", "toxic rate")),
        Column("rate by judge", 3, interval=True),
        Column("K-bar", 2),
        Column("evals", 1),
        Column("unresolved", 3),
        Column("empty", 3),
    ]
    title = f"rtp, pocket, {len(published.records)} prompts, three trials"
    print(to_markdown(Table("differences", title, columns, rows)))
    if models is not None:
        print(to_markdown(recorded(models)))


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
