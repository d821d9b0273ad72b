"""`tide report` makes tables and figures from runs, `tide export` makes training data."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from tide.cli import options
from tide.cli.display import ERRORS, OUTPUT, refuse_existing
from tide.core.errors import InputError
from tide.data.files import replaced, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tide.evaluation.reporting.tables import Table as Reported


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
    valid: Annotated[
        Literal["exact-20"] | None,
        options.option("Tables", "Use only completions of 20 reference tokens, as published."),
    ] = None,
    image_format: Annotated[
        Literal["png", "pdf"], options.option("Output", "Kind of image file.", "--format")
    ] = "png",
    trajectory: Annotated[
        str | None,
        options.option("Figures", "Draw the toxicity of one prompt's search.", metavar="ID"),
    ] = None,
    encoder: Annotated[
        str | None,
        options.option(
            "Tables",
            "Add similarities and MAUVE by a sentence encoder: minilm, a folder or a hub id.",
            metavar="NAME",
        ),
    ] = None,
    seed: Annotated[int, options.option("Tables", "Seed of the bootstrap.", min=0)] = 0,
) -> None:
    """Print the tables of RUNS and write them, their figures and their metrics to a folder.

    `report.html` in that folder shows all of them on one page. It also shows the completions of the
    twenty worst prompts before and after; a button unmasks their toxic words. Only files of an
    earlier report are removed from the folder.

    Runs of different benchmarks, models or protocols go to separate tables. Runs that differ only
    in seed share one row, with mean and standard deviation.
    """
    from tide.evaluation.quality import Encoder  # noqa: PLC0415
    from tide.evaluation.reporting import reports  # noqa: PLC0415
    from tide.evaluation.runs import find_runs, read_run  # noqa: PLC0415

    paths = find_runs(runs)
    out = out or paths[0].parent / "report"
    made = reports.report(
        [read_run(path) for path in paths],
        against=against,
        valid=valid,
        trajectory=trajectory,
        seed=seed,
        encoder=None if encoder is None else Encoder(encoder),
    )
    made.write(out, image_format)
    print_tables(made.tables)
    if made.problem:
        ERRORS.print(made.problem, highlight=False, soft_wrap=True)
    ERRORS.print(f"written to {out}; report.html shows all of it", highlight=False, soft_wrap=True)


def print_tables(some: Sequence[Reported]) -> None:
    from tide.evaluation.reporting.tables import to_rich  # noqa: PLC0415  (slow import)

    for table in some:
        OUTPUT.print(to_rich(table))


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORDS...",
            help="Runs (folders or .jsonl files of 'run' and 'eval'), or folders of runs.",
        ),
    ],
    shape: Annotated[
        Literal["dpo", "sft"],
        options.option(
            "Output",
            "dpo (prompt, chosen, rejected, blamed_at) or sft (prompt, completion).",
            "--format",
        ),
    ] = "dpo",
    output: Annotated[
        Path | None,
        options.option(
            "Output",
            "Write to this .jsonl. [default: standard output]",
            "--output",
            "-o",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        float, options.option("Output", "Minimum difference of a pair's scores.", min=0.0, max=1.0)
    ] = 0.0,
    overwrite: options.Overwrite = False,
) -> None:
    """Write the repairs in RECORDS as training data for TRL, with a JSON line for each repair.

    A pair is an accepted repair and the model's completion that it replaced; 'blamed_at' is the
    first character at which the two differ. Trials without a repair are left out and counted, and
    so are repairs that were not accepted, are empty, repeat themselves or duplicate an earlier
    pair. The rejected texts are toxic, and nothing is masked.
    """
    from tide.evaluation.preferences import export_pairs  # noqa: PLC0415  (slow import)
    from tide.evaluation.runs import files_of, find_runs  # noqa: PLC0415

    with nullcontext() if output is None else writing(output):
        paths = find_runs(runs)
        refuse_existing(overwrite, output, inputs=[file for run in paths for file in files_of(run)])
        found = export_pairs(paths, margin=margin)
        if not found.pairs:
            why = ", ".join(f"{count} {reason}" for reason, count in found.left_out.most_common())
            raise InputError(
                f"RECORDS: no pairs found ({why or 'no finished trial'}), so nothing is written; "
                "run more prompts or --trials, or lower --margin"
            )
        # ASCII: a terminal would obey control characters even inside JSON.
        lines = [json.dumps(pair.row(shape)) for pair in found.pairs]
        if output is None:
            print(*lines, sep="\n")
        else:
            with replaced(output) as file:
                file.writelines(line.encode() + b"\n" for line in lines)
    table = Table("trials", "")
    table.columns[1].justify = "right"
    table.add_row("written", str(len(lines)))
    for reason, count in found.left_out.most_common():
        table.add_row(f"left out: {reason}", str(count))
    ERRORS.print(table)
