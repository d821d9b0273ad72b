"""`tide report` makes tables and figures from runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tide.evaluation.tables import Table as Reported


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs (folders or .jsonl files), or folders of runs.")
    ],
    out: Annotated[
        Path | None,
        options.option("Output", "Folder to write to (default: 'report' next to the first run)."),
    ] = None,
    against: Annotated[
        str | None,
        options.option("Tables", "Method to test the other methods against (default: base)."),
    ] = None,
    image_format: Annotated[
        Literal["png", "pdf"], options.option("Output", "Kind of image file.", "--format")
    ] = "png",
) -> None:
    """Print the tables of RUNS and write them, a figure and the metrics to a folder.

    `report.html` in that folder shows all of them on one page. It also shows the completions of the
    twenty worst prompts before and after; a button unmasks their toxic words.

    Runs of different benchmarks, models or protocols go to separate tables.
    """
    from tide.evaluation import reports  # noqa: PLC0415
    from tide.evaluation.runs import find_runs, read_run  # noqa: PLC0415

    paths = find_runs(runs)
    out = out or paths[0].parent / "report"
    whole = reports.report(
        [read_run(path) for path in paths],
        against=against,
    )
    whole.write(out, image_format)
    print_tables(whole.tables)
    if whole.problem:
        ERRORS.print(whole.problem, highlight=False, soft_wrap=True)
    ERRORS.print(f"written to {out}; report.html shows all of it", highlight=False, soft_wrap=True)


def print_tables(tables: Sequence[Reported]) -> None:
    """Print tables; a line that explains several of them is printed once."""
    from tide.evaluation.tables import to_rich  # noqa: PLC0415  (slow import)

    known: set[str] = set()
    for table in tables:
        OUTPUT.print(to_rich(table, known=known))
        known.update(table.legend)
