"""`tide tune`: choose settings for a model, as the paper did or by Optuna's search."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from tide.cli import options, stopping
from tide.cli.display import ERRORS, OUTPUT, say_loading
from tide.cli.evaluate import BY_PROTOCOL, Benchmark, Protocol
from tide.cli.report import print_tables
from tide.tuning.settings import SEARCHES, TuningSettings

_STATED = {
    "start": " or ".join(f"{strategy} for {search}" for search, strategy in SEARCHES.items()),
    "tune_on": "the first half",
    "report_on": "all others",
}


@partial(
    options.with_settings,
    settings=TuningSettings,
    panel="Tuning",
    stated=_STATED,
    argument="tuning_settings",
)
@partial(options.with_settings, stated=BY_PROTOCOL)
@options.with_engine
def tune(
    benchmark: Benchmark = "rtp",
    model: options.Model = "pocket",
    scorer: options.Scorer = "pocket",
    judges: options.Judges = None,
    protocol: Protocol = "tide",
    reference: Annotated[
        str,
        options.option(
            "Perplexity", "Model that measures perplexity; auto: by the model's name; none."
        ),
    ] = "auto",
    out: options.RunsOut = None,
    engine: options.EngineName = "transformers",
    engine_options: dict[str, Any] | None = None,
    limit: options.Limit = None,
    field: options.Field = "prompt",
    chat: options.IsChat = False,
    tuning_settings: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Choose settings for a model on some prompts of BENCHMARK, and report on the others.

    Every setting has a run folder in --out, by default runs/tune-SEARCH-BENCHMARK-MODEL. The same
    command resumes a killed run, with the same result. The result is a preset file, for --preset
    and --methods. A setting that is given below is not tuned.
    """
    from tide import tuning  # noqa: PLC0415  (slow imports)
    from tide.evaluation import Bars  # noqa: PLC0415

    say_loading(model, scorer)
    stopping.keeps("finished settings are kept; the same command resumes")
    tuned = tuning.tune(
        benchmark,
        model=model,
        scorer=scorer,
        judges=options.judges(judges),
        protocol=protocol,
        reference=reference,
        out=out,
        engine=engine,
        engine_options=engine_options,
        field=field,
        limit=limit,
        chat=chat,
        progress=Bars(ERRORS),
        **(tuning_settings or {}),
        **(overrides or {}),
    )
    of_all = ("quality", "moved", "cost", "significance")
    tables = [table for table in tuned.report.tables if table.name.startswith(of_all)]
    print_tables([tuned.table(), *tables])
    if not tuned.changed:
        OUTPUT.print(f"nothing tried was better in every measure than {tuned.tried[0].method}")
    if tuned.problem:
        ERRORS.print(tuned.problem, highlight=False, soft_wrap=True)
    folder = tuned.preset.parent / "report"
    ERRORS.print(f"written to {folder}; use it: --preset {tuned.preset}", soft_wrap=True)
