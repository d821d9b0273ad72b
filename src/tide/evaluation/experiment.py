"""Runs methods on a benchmark, each into its own run; adds judges and perplexity to finished runs.

Only missing work is done: prompts and trials that a run lacks, scores of new judges, perplexity
under new reference models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tide.core.errors import InputError, TideError
from tide.core.fingerprints import code_digest
from tide.data.files import writing
from tide.data.records import RecordFile, RecordId
from tide.data.texts import Row
from tide.engines import load_engine
from tide.engines.base import Engine, name_of
from tide.evaluation.benchmarks import Benchmark, load_protocol, open_benchmark
from tide.evaluation.console import Progress
from tide.evaluation.judging import (
    AnyScorer,
    NamedScorer,
    Reference,
    judge_records,
    measure_records,
    open_scorer,
    open_scorers,
    reference_named,
    without_guide,
)
from tide.evaluation.methods import Method, MethodRules, check_chats, check_method, load_method
from tide.evaluation.runs import (
    FORMAT,
    Run,
    files_of,
    find_runs,
    open_run,
    read_config,
    read_run,
    write_config,
)
from tide.evaluation.tables import slug
from tide.plugins.specs import split_specs
from tide.scorers import DEFAULT_SCORER

if TYPE_CHECKING:
    from torch.nn import Module

    from tide.core.settings import Overrides

AnyMethod = str | type
Failed = dict[RecordId, TideError]

_PACKAGES = ("tide-detox", "torch", "transformers", "numpy", "scikit-learn", "scipy")
# Engine options that change the output; the other options set where and how fast the engine runs.
_DECIDING = ("quantization", "kv_cache_dtype", "revision", "hf_overrides")


def evaluate(
    benchmark: str | Path | Benchmark | Sequence[str],
    methods: str | Sequence[AnyMethod] = ("base", "tide", "backtrack"),
    *,
    model: str | Path | Engine | Module = "pocket",
    scorer: AnyScorer = DEFAULT_SCORER,
    judges: AnyScorer | Sequence[AnyScorer] = (),
    protocol: str = "tide",
    reference: str | Sequence[str] = "auto",
    artefacts: Path | None = None,
    out: str | Path | None = None,
    engine: str = "transformers",
    engine_options: Mapping[str, Any] | None = None,
    field: str = "prompt",
    limit: int | None = None,
    chat: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **overrides: Unpack[Overrides],
) -> list[Run]:
    """Run methods on a benchmark, each into its own folder, and read the runs.

    Args:
        benchmark: A name, a file, or prompts.
        methods: A list of specs and classes (strategies, baselines), or a comma-separated text.
        model: As for `Detoxifier`.
        scorer: Scorer of the search.
        judges: Scorers kept out of the search.
        protocol: Sampling settings and the definition of toxic, by name (see `tide eval --help`).
        reference: Models that measure perplexity, loaded after `model` is closed. "auto": a larger
            model of the same family; "global": the paper's single reference for all models; "none".
        artefacts: The folder that `tide fit` wrote, for baselines that need training.
        out: By default `runs/BENCHMARK-MODEL`. Keeps finished records, and adds missing records.
        engine: Engine of `model`.
        engine_options: Options of `engine`.
        field: Field of the prompts in a benchmark file.
        limit: First N prompts only.
        chat: Answer prompts (or the `messages` of a .jsonl file) with the model's chat template.
        overwrite: Start again instead of resuming.
        progress: Receives the progress; `Bars()` shows it.
        **overrides: Settings for all methods (`temperature=0.7`, `seed=1`, `num_trials=5`).

    Returns:
        One run per method, with its `failed` prompts.

    Raises:
        InputError: An argument cannot be used, or `out` holds a run with other settings.
        TideError: The model or the scorer failed for all prompts.
    """
    prompts, specs = open_benchmark(benchmark, field, limit, chat), _specs(methods)
    rules = MethodRules(load_protocol(protocol), overrides, artefacts)
    for spec in specs:  # before a model is loaded, which is slow
        check_method(spec, name_of(model), rules)
    progress = progress or Progress()
    references = _references(reference, name_of(model), progress)
    options = dict(engine_options or {})
    with ExitStack() as stack:
        guide = open_scorer(scorer, stack)
        opened = open_scorers(_listed(judges), stack)
        outside = without_guide(opened, guide.scorer.name, progress)
        with _opened(model, engine, options) as loaded:
            if chat:
                check_chats(loaded)
            config: dict[str, Any] = {"protocol": rules.protocol.config}
            config["benchmark"] = {"name": prompts.name, "source": prompts.source}
            config |= {"scorer": guide.config, **describe(model, engine, options, loaded)}
            job = Job(prompts.rows, config, outside, overwrite, progress)
            chosen = [load_method(spec, loaded, guide.scorer, rules) for spec in specs]
            paths = _folders(chosen, out, prompts.name, config["model"])
            for path in paths:
                stack.enter_context(writing(files_of(path).records))
            failed = {}
            for method, path in zip(chosen, paths, strict=True):
                failed[path] = run_method(method, path, job)
        _measure(paths, references, options, progress)
        return [
            _finished(path, failed[path], method.settings.num_trials, prompts.rows)
            for method, path in zip(chosen, paths, strict=True)
        ]


def _opened(
    model: str | Path | Engine | Module, engine: str, options: Mapping[str, Any]
) -> AbstractContextManager[Engine]:
    if isinstance(model, Engine):  # its owner closes it
        return nullcontext(model)
    return load_engine(engine, model, **options)


def _finished(path: Path, failed: Failed, num_trials: int, rows: Sequence[Row]) -> Run:
    """Read the records of `rows` in a run, which has those of earlier calls, too.

    Raises InputError, with the first error, if no record of any prompt is whole.
    """
    try:
        # Of an earlier call with more trials, a maximum of more completions would be larger.
        run = read_run(path, num_trials)
    except InputError:
        if not failed:
            raise
        row_id, error = next(iter(failed.items()))
        raise InputError(f"{path}: all prompts failed; id {row_id}: {error}") from None
    prompt_ids = {row.id for row in rows}
    config = {**run.config, "num_prompts": len(prompt_ids)}
    records = [record for record in run.records if record.id in prompt_ids]
    return replace(run, config=config, records=records, failed=failed)


def _folders(
    methods: Sequence[Method], out: str | Path | None, benchmark: str, model: str
) -> list[Path]:
    """Return the folder of each method's run. Raises InputError if two methods have one folder."""
    folder = Path(out or Path("runs", f"{slug(benchmark)}-{slug(Path(model).name)}"))
    paths = [folder / slug(method.name) for method in methods]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise InputError(f"methods: {methods[number].name} is named twice")
    return paths


def _specs(methods: str | Sequence[AnyMethod]) -> list[str]:
    """Return a spec for each method."""
    names = split_specs(methods, "--methods") if isinstance(methods, str) else methods
    specs: list[str] = []
    for method in names:
        if isinstance(method, str):
            specs.append(method)
        elif not isinstance(method, type) or "<locals>" in method.__qualname__:
            raise InputError(f"methods: expected specs, or classes of a module (got {method!r})")
        else:
            specs.append(f"{method.__module__}:{method.__qualname__}")
    return specs


def judge(
    runs: str | Path | Sequence[str | Path],
    *,
    judges: AnyScorer | Sequence[AnyScorer] = (),
    reference: str | Sequence[str] = (),
    engine_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Run]:
    """Add judges and perplexity to finished runs; nothing is generated.

    Args:
        runs: Paths of runs, or folders that contain runs at any depth.
        judges: Scorers to add.
        reference: Models that measure perplexity, as for `evaluate`.
        engine_options: `device` and `max_batch` of the reference models.
        progress: As for `evaluate`.

    Returns:
        The runs with the new scores.

    Raises:
        InputError: An argument or a run cannot be used.
        TideError: A judge or a reference model failed.
    """
    paths = find_runs([Path(run) for run in _listed(runs)])
    progress = progress or Progress()
    by_reference: dict[str, list[Path]] = {}
    for path in paths:
        for name in _references(reference, str(read_config(path).get("model")), progress):
            by_reference.setdefault(name, []).append(path)
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(writing(files_of(path).records))
        loaded = open_scorers(_listed(judges), stack)
        failed = {path: _judge(_records_of(path), path, loaded, progress) for path in paths}
        for name, run_paths in by_reference.items():
            _measure(run_paths, [name], engine_options or {}, progress)
        return [replace(read_run(path), failed=failed[path]) for path in paths]


@dataclass(frozen=True)
class Job:
    """State that the runs of one command share.

    config: description of model, scorer, benchmark and protocol.
    """

    rows: Sequence[Row]
    config: dict[str, Any]
    judges: Sequence[NamedScorer] = ()
    overwrite: bool = False
    progress: Progress = field(default_factory=Progress)


def run_method(method: Method, path: Path, job: Job) -> Failed:
    """Create or complete the run at `path`; returns the errors of failed rows, by id.

    Raises InputError if `path` has another configuration, and any error that aborts all rows.
    """
    config = {
        "format": FORMAT,
        "method": method.name,
        **job.config,
        **method.config,
        "num_trials": method.settings.num_trials,
        "num_prompts": len(job.rows),
        "judges": [],
        "references": [],
    }
    prompts = {row.id: row.asked for row in job.rows}
    file = open_run(path, config, prompts, overwrite=job.overwrite)
    failed = _generate(method, file, job)
    return failed | _judge(file, path, job.judges, job.progress)


def describe(
    model: str | Path | Engine | Module, engine: str, options: Mapping[str, Any], loaded: Engine
) -> dict[str, Any]:
    """Describe, for a run's configuration, the model and engine that determine the completions.

    loaded: the engine that runs `model`.
    """
    if not isinstance(model, str | Path):
        model, engine = loaded.name, type(loaded).__name__
    described: dict[str, Any] = {
        "model": str(model),
        "engine": engine,
        "dtype": str(loaded.dtype or "").removeprefix("torch."),
        "versions": {name: version(name) for name in _PACKAGES},
        "engine_code": code_digest(type(loaded)) or None,
        "engine_options": {name: options[name] for name in _DECIDING if name in options},
    }
    if loaded.in_process:
        from tide.engines.checkpoint import weights_of  # noqa: PLC0415  (torch)

        in_memory = getattr(loaded, "weights", None)
        described["weights"] = in_memory or weights_of(str(model), options.get("revision"))
    return described


def _generate(method: Method, file: RecordFile, job: Job) -> Failed:
    left: dict[tuple[int, ...], list[Row]] = {}
    for row in job.rows:
        there = file.trials(row.id)
        missing = [trial for trial in range(method.settings.num_trials) if trial not in there]
        left.setdefault(tuple(missing), []).append(row)
    left.pop((), None)
    count = sum(map(len, left.values()))
    if file.records and count:
        job.progress.say(f"{file.path}: has records; prompts left: {count} of {len(job.rows)}")
    failed: Failed = {}
    with job.progress.task(method.name, count) as advance:
        for trials, rows in left.items():
            for row, record in method.records(rows, trials):
                if isinstance(record, TideError):
                    failed[row.id] = record
                    job.progress.failed(method.name, row.id, record)
                else:
                    file.add(record)
                advance(1)
    return failed


def _records_of(path: Path) -> RecordFile:
    """Open a finished run, to add scores."""
    files = files_of(path)
    return RecordFile(files.records, files.scores)


def _judge(
    file: RecordFile, path: Path, judges: Sequence[NamedScorer], progress: Progress
) -> Failed:
    failed = Failed()
    if not (judges and file.records):
        return failed
    config = read_config(path)
    for judge in without_guide(judges, config["scorer"]["name"], progress, where=str(path)):
        judges_so_far = {entry["name"]: entry for entry in config["judges"]}
        before = judges_so_far.get(judge.scorer.name, judge.config)
        if before.get("code") != judge.config.get("code"):
            raise InputError(
                f"{path}: has scores by other code of {judge.scorer.name}; rename the judge"
            )
        config["judges"] = list((judges_so_far | {judge.scorer.name: judge.config}).values())
        write_config(path, config)
        failed |= judge_records(file, judge.scorer, progress)
    return failed


def _measure(
    paths: Sequence[Path], references: Sequence[str], options: Mapping[str, Any], progress: Progress
) -> None:
    """Measure the perplexity of every run; each reference is loaded once for all.

    options: of the evaluated model's engine; the references have its device and batch size.
    """
    shared = {name: options[name] for name in ("device", "max_batch") if name in options}
    for name in references:
        with closing(Reference(name, **shared)) as reference:
            for path in paths:
                config = read_config(path)
                if name not in config["references"]:
                    config["references"].append(name)
                    write_config(path, config)
                measure_records(_records_of(path), reference, progress)


def _references(names: str | Sequence[str], model: str, progress: Progress) -> list[str]:
    """Return the reference models of a run. Raises EngineError if one does not exist."""
    usable: list[str] = []
    for name in _listed(names):
        reference = reference_named(name, model)
        if reference is None:
            progress.say(f"no perplexity: no larger model like {model} is known; see --reference")
        elif reference != "none":
            Reference.check(reference)
            usable.append(reference)
    return list(dict.fromkeys(usable))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
