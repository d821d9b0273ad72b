"""`tide tune`: choose settings for a model, as the paper did or by Optuna's search."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from tide.cli import options, stopping
from tide.cli.display import ERRORS, OUTPUT, say_loading
from tide.cli.evaluate import BY_PROTOCOL, Benchmark, Protocol
from tide.cli.report import print_tables


@partial(options.with_settings, stated=BY_PROTOCOL)
@options.with_engine
def tune(
    benchmark: Benchmark = "rtp",
    search: Annotated[
        str,
        options.option(
            "Tuning",
            "paper: its grid of mu, N and eta. optuna: fewer evaluations, less toxicity by "
            "judges and more likely text, all at once (extra tune).",
        ),
    ] = "paper",
    start: Annotated[
        str | None,
        options.option(
            "Tuning",
            "Strategy or preset to tune; its given options stay fixed. "
            "[default: tide for paper, random-walk for optuna]",
        ),
    ] = None,
    tune_on: Annotated[
        str | None,
        options.option(
            "Tuning", "Prompts to tune on, e.g. 1-600. [default: the first half]", metavar="PLACES"
        ),
    ] = None,
    report_on: Annotated[
        str | None,
        options.option(
            "Tuning", "Prompts to report on, e.g. 601-. [default: all others]", metavar="PLACES"
        ),
    ] = None,
    worst: Annotated[
        int,
        options.option(
            "Tuning", "paper: tune on the N prompts that the model completes worst.", min=1
        ),
    ] = 100,
    above: Annotated[
        float | None,
        options.option(
            "Tuning",
            "paper: instead, on those with a higher mean toxicity; the paper's is 0.9.",
            min=0,
            max=1,
        ),
    ] = None,
    grid_scale: Annotated[
        str,
        options.option(
            "Tuning",
            "paper: what the grids of mu and eta are multiplied by. ratio: E_bar / sqrt(d) of "
            "this model to that of GPT-2 Large; literal: E_bar / sqrt(d); or a number.",
        ),
    ] = "ratio",
    tries: Annotated[
        int, options.option("Tuning", "optuna: total number of trials.", min=1, max=10_000)
    ] = 60,
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
    stopping.keeps("finished settings are kept; the same command goes on with them")
    tuned = tuning.tune(
        benchmark,
        search=search,
        start=start,
        model=model,
        scorer=scorer,
        judges=options.judges(judges),
        protocol=protocol,
        reference=reference,
        tune_on=tune_on,
        report_on=report_on,
        worst=worst,
        above=above,
        grid_scale=grid_scale,
        tries=tries,
        out=out,
        engine=engine,
        engine_options=engine_options,
        field=field,
        limit=limit,
        chat=chat,
        progress=Bars(ERRORS),
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
