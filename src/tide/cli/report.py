"""`tide report`: tables and figures of runs on disk."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT
from tide.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tide.evaluation.metrics import Valid
    from tide.evaluation.reporting.tables import Table


class ImageFormat(str, Enum):
    PNG = "png"
    PDF = "pdf"


class ValidOption(str, Enum):
    EXACT_20 = "exact-20"


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs (folders or .jsonl files), or folders of runs."),
    ] = None,
    out: Annotated[
        Path | None,
        options.option("Output", "Folder to write to (default: 'report' beside the first run)."),
    ] = None,
    against: Annotated[
        str | None,
        options.option(
            "Tables",
            "Method that the others are tested against (default: base; with --paper: none).",
        ),
    ] = None,
    valid: Annotated[
        ValidOption | None,
        options.option("Tables", "Only completions of exactly 20 reference tokens, as published."),
    ] = None,
    image_format: Annotated[
        ImageFormat, options.option("Output", "Kind of image file.", "--format")
    ] = ImageFormat.PNG,
    trajectory: Annotated[
        str | None,
        options.option("Figures", "Draw the toxicity of one prompt's search.", metavar="ID"),
    ] = None,
    landscape: Annotated[
        str | None,
        options.option(
            "Figures", "Draw the toxicity around one prompt (runs the model).", metavar="ID"
        ),
    ] = None,
    grid: Annotated[
        int, options.option("Figures", "Points on a side of the landscape.", min=2)
    ] = 21,
    paper: Annotated[
        Path | None,
        options.option(
            "The paper's records", "Folder of the paper's records, to compare with ours."
        ),
    ] = None,
    judges: options.Judges = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(help="With --paper: perplexity models; auto and global are the paper's."),
    ] = None,
    reference_engine: options.ReferenceEngine = "transformers",
    reference_option: options.ReferenceOption = None,
    seed: Annotated[int, options.option("Tables", "Seed of the bootstrap.", min=0)] = 0,
) -> None:
    """Print the tables of RUNS and write them, their figures and their metrics to a folder.

    `report.html` in it holds all of that in one file, and the texts before and after of the twenty
    worst prompts, whose toxic words are masked until a button shows them. What an earlier report
    wrote to the folder is removed, and nothing else.

    Runs of different benchmarks, models or protocols go to separate tables. Runs that differ only
    in seed share one row: mean and standard deviation. With --paper, published runs are shown next
    to the printed numbers; --judges score their completions again, --reference measures their
    perplexity, and --against tests them.
    """
    from tide.evaluation.reporting import reports  # noqa: PLC0415
    from tide.evaluation.runs import find_runs  # noqa: PLC0415
    from tide.scorers import load_scorer  # noqa: PLC0415

    if (judges or reference) and paper is None:
        raise InputError("--judges, --reference: are for --paper; for RUNS use tide judge")
    if not runs and paper is None:
        raise InputError("nothing to report on: give run folders, or --paper")
    which: Valid | None = "exact-20" if valid else None
    of_paper = made = None
    if paper is not None:
        from tide.evaluation.paper_report import paper_report  # noqa: PLC0415

        of_paper = paper_report(
            paper,
            judges=[load_scorer(spec) for spec in options.judges(judges)],
            references=reference or (),
            reference_engine=reference_engine,
            reference_options=options.engine_options(reference_option, "--reference-option"),
            against=against,
            valid=which,
            seed=seed,
        )
    if runs:
        paths = find_runs(runs)
        out = out or paths[0].parent / "report"
        made = reports.report(
            paths,
            against=against,
            valid=which,
            trajectory=trajectory,
            landscape=landscape,
            grid=grid,
            seed=seed,
        )
    both = [one for one in (of_paper, made) if one is not None]
    whole = reports.Report(
        groups=[group for one in both for group in one.groups],
        tables=[table for one in both for table in one.tables],
        figures={name: figure for one in both for name, figure in one.figures.items()},
        problem=both[-1].problem,
    )
    if out is not None:
        whole.write(out, image_format.value)
    print_tables(whole.tables)
    if whole.problem:
        ERRORS.print(whole.problem, highlight=False, soft_wrap=True)
    if out is not None:
        ERRORS.print(
            f"written to {out}; report.html in it has all of it", highlight=False, soft_wrap=True
        )


def print_tables(some: Sequence[Table]) -> None:
    from tide.evaluation.reporting.tables import to_rich  # noqa: PLC0415  (slow import)

    for table in some:
        OUTPUT.print(to_rich(table))
