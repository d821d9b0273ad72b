"""`tide judge`: add judges and perplexity to finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tide.cli import options, stopping
from tide.cli.display import ERRORS
from tide.cli.report import print_tables
from tide.core.errors import InputError, TideError

if TYPE_CHECKING:
    from tide.evaluation import Run


def judge(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs (folders or .jsonl files), or folders with runs.")
    ],
    judges: options.Judges = None,
    reference: options.Reference = None,
    reference_engine: options.ReferenceEngine = "transformers",
    reference_option: options.ReferenceOption = None,
    device: options.Device = "auto",
    max_batch: options.MaxBatch = None,
) -> None:
    """Score the completions of finished RUNS by further judges; nothing is generated again.

    What a judge or a reference model has scored already is not scored again.
    """
    from tide import evaluation  # noqa: PLC0415  (slow import)

    if not judges and not reference:
        raise InputError("nothing to add: give --judges or --reference")
    stopping.keeps("finished scores are kept; the same command goes on with them")
    extended = evaluation.judge(
        runs,
        judges=options.judges(judges),
        reference=reference or [],
        reference_engine=reference_engine,
        reference_options=options.engine_options(
            reference_option, "--reference-option", device=device, max_batch=max_batch
        ),
        progress=evaluation.Bars(ERRORS),
    )
    print_tables(evaluation.report(extended, tests=False, draw=False).tables)
    refuse_failures(extended)


def refuse_failures(runs: list[Run]) -> None:
    """Raise TideError if prompts failed, once everything else is done."""
    if failed := sum(len(run.failed) for run in runs):
        raise TideError(f"{failed} prompts failed (see above); the same command tries them again")
