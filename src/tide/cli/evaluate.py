"""`tide eval` runs a benchmark, `tide judge` adds scores to runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tide.cli import options, stopping
from tide.cli.display import ERRORS, say_loading
from tide.cli.report import print_tables
from tide.core.errors import InputError, TideError

if TYPE_CHECKING:
    from tide.evaluation import Run

_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k")
_OF_PROTOCOLS = (*_SAMPLING, "num_trials", "completions_per_evaluation")
BY_PROTOCOL = {**options.BY_PRESET, **dict.fromkeys(_OF_PROTOCOLS, "by --protocol")}
Benchmark = Annotated[
    str,
    typer.Argument(
        help="rtp, attaq, bold or dialogues; prompts of a benchmark by number (rtp:201-1199); or a"
        " file of prompts (.jsonl, .csv, .txt)."
    ),
]
Protocol = Annotated[
    str,
    options.option(
        "Search",
        "Sampling, trials and toxicity threshold of a paper: tide, published, paper, tide-hot, "
        "dexperts or rad.",
    ),
]


@partial(options.with_settings, stated=BY_PROTOCOL)
@options.with_engine
def evaluate(
    benchmark: Benchmark,
    methods: options.Methods = "base,tide,backtrack",
    model: options.Model = "pocket",
    scorer: options.Scorer = "pocket",
    judges: options.Judges = None,
    strict_language: options.StrictLanguage = False,
    protocol: Protocol = "tide",
    preset: options.Preset = "auto",
    artefacts: Annotated[
        Path | None,
        options.option("Search", "Folder written by `tide fit`, for trained baselines."),
    ] = None,
    reference: options.Reference = None,
    reference_engine: options.ReferenceEngine = "transformers",
    reference_option: options.ReferenceOption = None,
    out: options.RunsOut = None,
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    cluster: Annotated[
        str | None,
        options.option("Model", "Run on Ray: local, auto, or ray://HOST:PORT (extra ray)."),
    ] = None,
    actors: Annotated[int, options.option("Model", "Processes on the cluster.", min=1)] = 1,
    actor_gpus: Annotated[float, options.option("Model", "GPUs of each process.", min=0)] = 0.0,
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

    say_loading(model, scorer)
    stopping.keeps("finished records are kept; the same command resumes")
    runs = evaluation.evaluate(
        benchmark,
        methods,
        model=model,
        scorer=options.strict(scorer, strict_language),
        judges=options.judges(judges, strict_language),
        protocol=protocol,
        preset=preset,
        reference=reference or "auto",
        reference_engine=reference_engine,
        reference_options=options.engine_options(reference_option, "--reference-option"),
        artefacts=artefacts,
        out=out,
        engine=engine,
        engine_options=engine_options,
        cluster=cluster,
        actors=actors,
        actor_gpus=actor_gpus,
        field=field,
        limit=limit,
        chat=chat,
        overwrite=overwrite,
        progress=evaluation.Bars(ERRORS),
        **(overrides or {}),
    )
    print_tables(evaluation.report(runs, tests=False, draw=False).tables)
    if runs[0].path is not None:
        folder = runs[0].path.parent
        ERRORS.print(
            f"written to {folder}; tide report {folder} makes tables and figures", soft_wrap=True
        )
    _refuse_failures(runs)


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
    """Score the completions of finished RUNS with further judges, without generating any text.

    Texts that a judge or a reference model has scored are not scored again.
    """
    from tide import evaluation  # noqa: PLC0415  (slow import)

    if not judges and not reference:
        raise InputError("nothing to add: give --judges or --reference")
    stopping.keeps("finished scores are kept; the same command resumes")
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
    _refuse_failures(extended)


def _refuse_failures(runs: list[Run]) -> None:
    """Raise TideError if prompts failed. Called after the results are written and printed."""
    if failed := sum(len(run.failed) for run in runs):
        raise TideError(f"{failed} prompts failed (see above); the same command tries them again")
