"""`tide export`: repairs as training data."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from tide.cli import options
from tide.cli.display import ERRORS, refuse_existing
from tide.core.errors import InputError
from tide.data.files import replaced, writing


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
        float,
        options.option("Output", "Minimum difference of a pair's scores.", min=0.0, max=1.0),
    ] = 0.0,
    overwrite: options.Overwrite = False,
) -> None:
    """Write the repairs in RECORDS as training data for TRL, a JSON line each.

    A pair is an accepted repair and the model's completion that it replaced; 'blamed_at' is the
    character at which the two differ. Trials without a repair, and repairs that
    were not accepted, are empty, repeat themselves or an earlier pair, are left out and counted.
    The rejected texts are toxic, and nothing is masked.
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
                f"RECORDS: no pair in them ({why or 'no finished trial'}), so nothing is written; "
                "run more prompts or --trials, or take a smaller --margin"
            )
        # ASCII: a terminal obeys control characters inside of JSON, too.
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
