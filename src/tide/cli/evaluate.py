"""`tide eval` runs a benchmark, `tide judge` adds scores to runs, `tide report` makes tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tide.cli import options
from tide.cli.display import OUTPUT, say_loading
from tide.core.errors import InputError, TideError
from tide.evaluation.benchmarks import PROTOCOLS
from tide.evaluation.console import ERRORS
from tide.scorers import DEFAULT_SCORER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tide.evaluation import Run
    from tide.evaluation.tables import Table

_METHODS = "base,tide,backtrack"
_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k")
_OF_PROTOCOLS = (*_SAMPLING, "num_trials", "completions_per_evaluation")
BY_PROTOCOL = {**options.BY_PRESET, **dict.fromkeys(_OF_PROTOCOLS, "by --protocol")}


Reference = Annotated[
    list[str] | None,
    options.option("Perplexity", "A model, auto, global (Qwen3-14B) or none; repeatable."),
]


Methods = Annotated[
    list[str] | None,
    options.option(
        "Search",
        "base (the unmodified model) and others, with options, comma-separated or repeated: "
        f"base,tide:num_samples=8,rad:beta=50. Available: {options.METHODS}. "
        f"('tide methods NAME' lists its options.) [default: {_METHODS}]",
    ),
]
ProtocolName = Annotated[
    str, options.option("Search", f"Sampling and trials of a paper: {', '.join(PROTOCOLS)}.")
]
Artefacts = Annotated[
    Path | None, options.option("Search", "Folder written by `tide fit`, for trained baselines.")
]
RunsFolder = Annotated[
    Path | None, options.option("Output", "Folder of the runs, which are resumed.", "--out", "-o")
]


@partial(options.with_settings, stated=BY_PROTOCOL)
@options.with_engine
def evaluate(
    benchmark: Annotated[
        str, typer.Argument(help="rtp, attaq, bold; a part (rtp:201-1199); or a file of prompts.")
    ],
    methods: Methods = None,
    model: options.Model = "pocket",
    scorer: options.Scorer = DEFAULT_SCORER,
    judges: options.Judges = None,
    reference: Reference = None,
    protocol: ProtocolName = "tide",
    artefacts: Artefacts = None,
    out: RunsFolder = None,
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    limit: options.Limit = None,
    field: options.Field = "prompt",
    chat: options.IsChat = False,
    overwrite: options.Overwrite = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Run METHODS on BENCHMARK and compare them; `tide report` makes tables and figures.

    Each method has a run folder in --out, by default runs/BENCHMARK-MODEL. Records are appended as
    prompts finish, and the same command resumes a killed run. With a larger --limit, more --trials,
    another judge or reference, it adds the missing parts. Method options below apply to all
    methods; options of a single method follow its name.
    """
    from tide import evaluation  # noqa: PLC0415  (slow import)

    named = ", ".join(judges or ()) or "none (add some with --judges)"
    say_loading(model, scorer, f"this scorer guides searches; judges: {named}")
    runs = evaluation.evaluate(
        benchmark,
        methods=",".join(methods or [_METHODS]),
        model=model,
        scorer=scorer,
        judges=options.judges(judges),
        protocol=protocol,
        reference=reference or "auto",
        artefacts=artefacts,
        out=out,
        engine=engine,
        engine_options=engine_options,
        field=field,
        limit=limit,
        chat=chat,
        overwrite=overwrite,
        progress=evaluation.Bars(log=True),
        **(overrides or {}),
    )
    _print_tables(evaluation.report(runs, tests=False, draw=False).tables)
    if runs[0].path is not None:
        folder = runs[0].path.parent
        ERRORS.print(f"written to {folder}; tide report {folder} makes tables and figures")
    _refuse_failures(runs)


def judge(
    runs: Annotated[
        list[Path], typer.Argument(help="Runs (folders or .jsonl files), or folders with runs.")
    ],
    judges: options.Judges = None,
    reference: Reference = None,
    device: options.Device = "auto",
    max_batch: options.MaxBatch = None,
) -> None:
    """Score the completions of finished RUNS with further judges, without generating any text.

    Texts that a judge or a reference model has scored are not scored again.
    """
    from tide import evaluation  # noqa: PLC0415  (slow import)

    if not judges and not reference:
        raise InputError("nothing to add: give --judges or --reference")
    extended = evaluation.judge(
        runs,
        judges=options.judges(judges),
        reference=reference or [],
        engine_options=options.engine_options(None, device=device, max_batch=max_batch),
        progress=evaluation.Bars(log=True),
    )
    _print_tables(evaluation.report(extended, tests=False, draw=False).tables)
    _refuse_failures(extended)


def _refuse_failures(runs: list[Run]) -> None:
    """Raise TideError if prompts failed. Called after the results are written and printed."""
    if failed := sum(len(run.failed) for run in runs):
        raise TideError(f"{failed} prompts failed (see above); the same command tries them again")


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
) -> None:
    """Print the tables of RUNS, and write them to a folder.

    If two runs have perplexities, a figure shows them against toxicity. `report.html` in that
    folder shows all on one page, with the completions of the twenty worst prompts before and
    after; a button unmasks their toxic words.

    Runs of different benchmarks, models or protocols go to separate tables.
    """
    from tide import evaluation  # noqa: PLC0415  (slow import)

    paths = evaluation.find_runs(runs)
    out = out or paths[0].parent / "report"
    whole = evaluation.report(paths, against=against, out=out)
    _print_tables(whole.tables)
    ERRORS.print(f"written to {out}; report.html shows all of it")


def _print_tables(tables: Sequence[Table]) -> None:
    """Print tables; a line that explains several of them is printed once."""
    from tide.evaluation.tables import to_rich  # noqa: PLC0415  (slow import)

    known: set[str] = set()
    for table in tables:
        OUTPUT.print(to_rich(table, OUTPUT.width, known))
        known.update(table.legend)
