"""`tide eval`: methods side by side on a benchmark, each into a run folder."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from tide.cli import options
from tide.cli.display import ERRORS, progress_bar
from tide.cli.report import summarize_runs
from tide.config import Settings
from tide.engines import load_engine
from tide.errors import InputError, TideError
from tide.evaluation.benchmarks import load_benchmark
from tide.evaluation.evaluate import Setting, measure_perplexity, run_method
from tide.evaluation.methods import Method, load_method
from tide.evaluation.perplexity import Reference, reference_for
from tide.evaluation.places import Cluster, Here
from tide.evaluation.protocols import load_protocol
from tide.evaluation.reporting.tables import slug
from tide.evaluation.sharing import SharedEngine
from tide.scorers import load_scorer
from tide.specs import split_specs

_PACKAGES = ("tide-detox", "torch", "transformers", "numpy", "scikit-learn", "scipy")
_ENSEMBLES = ("mean:", "max:")


@options.with_settings
def evaluate(
    benchmark: Annotated[
        str, typer.Argument(help="rtp, attaq, bold, or a file of prompts (.jsonl, .csv, .txt).")
    ],
    methods: Annotated[
        str,
        typer.Option(
            help="base, tide, fast, a strategy or a baseline, each with settings of its own: "
            "base,fast,resample:temperature=1.0,..."
        ),
    ] = "base,tide,fast",
    model: options.Model = "pocket",
    scorer: options.Scorer = "pocket",
    judges: Annotated[
        list[str] | None,
        typer.Option(
            "--judges", "-j", help="Scorers kept out of the search, comma-separated or repeated."
        ),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="tide, tide-hot, dexperts or rad: sampling, trials, what is toxic.")
    ] = "tide",
    artefacts: Annotated[
        Path | None, typer.Option(help="Folder that `tide fit` wrote, for baselines that learn.")
    ] = None,
    reference: Annotated[
        str,
        typer.Option(help="Model that measures perplexity; auto: by the model's name; none."),
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run folders. Resumes what is in it."),
    ] = None,
    engine: options.EngineName = "transformers",
    base_url: options.BaseUrl = None,
    engine_option: options.EngineOption = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    max_batch: options.MaxBatch = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Run on Ray: local, auto, or ray://HOST:PORT (tide-detox[ray])."),
    ] = None,
    actors: Annotated[int, typer.Option(min=1, help="Processes on the cluster.")] = 1,
    actor_gpus: Annotated[float, typer.Option(min=0, help="GPUs that each of them takes.")] = 0.0,
    limit: options.Limit = None,
    field: options.Field = "prompt",
    overwrite: options.Overwrite = False,
    overrides: dict[str, Any] | None = None,
) -> None:
    """Run METHODS on BENCHMARK and compare them; `tide report` makes tables and figures of it.

    Each method has a run folder in --out, by default runs/BENCHMARK-MODEL. Records are appended as
    prompts finish, and the same command goes on where a killed one stopped. The options of the
    method below hold for all methods; those of a single one are written behind its name.
    """
    common = overrides or {}
    rules = load_protocol(protocol, common)
    prompts = load_benchmark(benchmark, field=field, limit=limit)
    inside, outside = load_scorer(scorer), [load_scorer(name) for name in _split(judges or [])]
    engine_options = options.engine_options(
        device=device, dtype=dtype, max_batch=max_batch, base_urls=base_url, further=engine_option
    )
    place: Here | Cluster
    if cluster is None:
        loaded = load_engine(engine, model, **engine_options)
        place = Here(SharedEngine(loaded), inside)
        described = options.engine_config(engine, engine_options, loaded.dtype)
    else:
        place = Cluster(
            model, scorer, engine, engine_options, cluster, actors=actors, gpus=actor_gpus
        )
        described = options.engine_config(engine, engine_options, dtype)
    chosen = [
        load_method(spec, place, rules, common, artefacts)
        for spec in split_specs(methods, "--methods")
    ]
    setting = Setting(
        benchmark=prompts,
        protocol=rules,
        scorer=inside,
        judges=outside,
        config={
            "model": model,
            **described,
            "versions": {name: version(name) for name in _PACKAGES},
        },
        empty_policy=Settings.of(common).empty_policy,
    )
    out = out or Path("runs") / f"{prompts.name}-{slug(Path(model).name)}"
    folders = {method.name: out / slug(method.name) for method in chosen}
    if len(set(folders.values())) < len(chosen):
        raise InputError("--methods: one of them is named twice")
    failed = 0
    try:
        for method in chosen:
            failed += _run(method, setting, folders[method.name], overwrite)
    finally:
        if isinstance(place, Here):
            place.engine.close()
    here = options.engine_options(device=device, max_batch=max_batch)
    _measure(list(folders.values()), reference, model, here)
    summarize_runs(list(folders.values()))
    ERRORS.print(f"written to {out}; tide report {out} makes tables and figures", markup=False)
    if failed:
        raise TideError(f"{failed} prompts failed (see above); the same command tries them again")


def _split(names: list[str]) -> list[str]:
    return [
        name
        for value in names
        for name in ([value] if value.startswith(_ENSEMBLES) else value.split(","))
    ]


def _run(method: Method, setting: Setting, folder: Path, overwrite: bool) -> int:
    """Run one method with a progress bar; returns how many prompts failed."""
    failed = 0
    with progress_bar() as bar:
        task = bar.add_task(method.name, total=None)

        def started(left: int) -> None:
            done = len(setting.benchmark.rows) - left
            bar.update(task, total=left)
            if done:
                ERRORS.print(f"{folder}: {done} records are there, {left} to go")

        for row, error in run_method(
            method, setting, folder, overwrite=overwrite, on_start=started
        ):
            bar.advance(task)
            if error is not None:
                failed += 1
                ERRORS.print(f"{method.name}, id {row.id}: {error}", style="red", markup=False)
    return failed


def _measure(folders: list[Path], name: str, model: str, engine_options: dict[str, Any]) -> None:
    """Perplexity of every run under the reference `name`, with a progress bar."""
    if name == "auto":
        known = reference_for(model)
        if known is None:
            ERRORS.print(f"no reference model is known for {model}: no perplexity (--reference)")
            return
        name = known
    elif name == "none":
        return
    reference = Reference(name, **engine_options)
    try:
        for folder in folders:
            with progress_bar() as bar:
                task = bar.add_task(f"perplexity of {folder.name}", total=None)
                for added in measure_perplexity(folder, reference):
                    bar.advance(task, added)
    finally:
        reference.close()
