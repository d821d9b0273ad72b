"""`tide sweep`: what one setting does, as in the paper's tables of sensitivity."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from tide.cli import options, stopping
from tide.cli.display import ERRORS, say_loading
from tide.cli.evaluate import BY_PROTOCOL, Benchmark, Protocol
from tide.cli.judge import refuse_failures
from tide.cli.report import print_tables
from tide.core.errors import InputError
from tide.tuning.published import SWEEPS

_SWEEPS = ", ".join(SWEEPS)


@partial(options.with_settings, stated=BY_PROTOCOL)
@options.with_engine
def sweep(
    setting: Annotated[
        str, typer.Argument(help=f"{_SWEEPS}; with --values any number that a method takes.")
    ],
    benchmark: Benchmark = "rtp",
    method: Annotated[
        str, options.option("Search", "A strategy, preset or other system, with options.")
    ] = "tide",
    values: Annotated[
        str | None,
        options.option(
            "Search",
            "Comma-separated; of mu and step_size multiples of what the method has. "
            "[default: those of the paper]",
        ),
    ] = None,
    model: options.Model = "pocket",
    scorer: options.Scorer = "pocket",
    judges: options.Judges = None,
    protocol: Protocol = "tide",
    preset: options.Preset = "auto",
    reference: options.Reference = None,
    out: options.RunsOut = None,
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    limit: options.Limit = None,
    field: options.Field = "prompt",
    chat: options.IsChat = False,
    overwrite: options.Overwrite = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Run a method with several values of SETTING on BENCHMARK, and draw the curves.

    Each value has a run folder in --out, by default runs/sweep-SETTING-BENCHMARK-MODEL, as `tide
    eval` makes them; the tables and curves are in its folder `report`.
    """
    from tide import evaluation, tuning  # noqa: PLC0415  (slow imports)

    try:
        numbers = [float(value) for value in values.split(",")] if values else None
    except ValueError:
        raise InputError(f"--values: expected numbers and commas (got {values!r})") from None
    say_loading(model, scorer)
    stopping.keeps("finished records are kept; the same command goes on with them")
    runs = tuning.sweep(
        setting,
        benchmark,
        method,
        values=numbers,
        model=model,
        scorer=scorer,
        judges=options.judges(judges),
        protocol=protocol,
        preset=preset,
        reference=reference or "auto",
        out=out,
        engine=engine,
        engine_options=engine_options,
        limit=limit,
        field=field,
        chat=chat,
        overwrite=overwrite,
        progress=evaluation.Bars(ERRORS),
        **(overrides or {}),
    )
    assert runs[0].path is not None
    folder = runs[0].path.parent / "report"
    made = evaluation.report(runs, out=folder, tests=False)
    print_tables(made.tables)
    if made.problem:
        ERRORS.print(made.problem, highlight=False, soft_wrap=True)
    ERRORS.print(f"written to {folder}", highlight=False, soft_wrap=True)
    refuse_failures(runs)
