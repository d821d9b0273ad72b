"""What `--methods` names: `base`, a search strategy or preset, a baseline; each with its settings.

`tide`, `fast`, `resample:temperature=1.0`, `tide:num_samples=16,mu_relative=0.6`, `rad:beta=50`...
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tide.baselines import REGISTRY as BASELINES
from tide.baselines import Baseline, load_baseline
from tide.config import Sampling, Settings
from tide.data.prompts import Row
from tide.data.records import Record, to_record
from tide.detoxifier import Detoxifier
from tide.engines import Engine
from tide.errors import InputError, TideError
from tide.evaluation.protocols import EvaluationProtocol
from tide.evaluation.runners import ClusterRunner, LocalRunner
from tide.evaluation.sharing import SharedEngine
from tide.presets import PRESETS, preset_values
from tide.results import Result, Trial
from tide.scorers import Scorer, score_texts
from tide.search import REGISTRY as STRATEGIES
from tide.seeds import derive_seed
from tide.specs import parse_spec

# The model as it is: one draw and no search.
_BASE = {"strategy": "resample", "max_iterations": 1}
# Settings that hold for methods without a search too.
_OF_ALL = (*Sampling.model_fields, "num_trials", "seed", "empty_policy")
# A scale that the other one of its pair replaces is not a setting of its own.
_SCALES = ("mu", "mu_relative", "step_size", "step_relative")
# What a record says of a search, and means nothing where there was none.
_OF_A_SEARCH = (
    *("accepted", "refused", "num_iter_steps", "cosine_sims", "displacements", "traces", "steps"),
    *("base_completions", "base_toxicity_scores"),
)


class Method(Protocol):
    """One column of a comparison.

    name: its spec with every setting that differs from the protocol. config: everything that
    decides its records, apart from the number of trials. settings: those that hold for it.
    """

    name: str
    config: dict[str, Any]
    settings: Settings

    def records(
        self, rows: Sequence[Row], trials: Sequence[int], *, ordered: bool = False
    ) -> Iterator[tuple[Row, Record | TideError]]:
        """The trials of these numbers of each row as it is finished, or why it has no record.

        A row that fails does so alone. ordered: in the order of the rows.
        Raises what concerns all rows: EngineError, ScorerUnavailable, ScorerError.
        """
        ...


class SearchMethod:
    """A search strategy, or (`base`) the model as it is."""

    def __init__(
        self,
        name: str,
        runner: LocalRunner | ClusterRunner,
        settings: Settings,
        *,
        base: bool = False,
    ) -> None:
        self.name, self.settings = name, settings
        self.config = {"settings": settings.model_dump(exclude={"num_trials"})}
        self._runner, self._base = runner, base
        self._engine: Engine | None = runner.engine if isinstance(runner, LocalRunner) else None

    def records(
        self, rows: Sequence[Row], trials: Sequence[int], *, ordered: bool = False
    ) -> Iterator[tuple[Row, Record | TideError]]:
        texts, started = [row.text for row in rows], self._clock()
        for number, result in self._runner.complete(self.settings, texts, trials, ordered=ordered):
            spent = self._clock() - started
            row = rows[number]
            yield row, result if isinstance(result, TideError) else self._record(row, result, spent)
            started = self._clock()

    def _clock(self) -> float:
        """Seconds; what a shared base completion took counts for every method that used it."""
        saved = self._engine.seconds_saved if isinstance(self._engine, SharedEngine) else 0.0
        return time.perf_counter() + saved

    def _record(self, row: Row, result: Result, seconds: float) -> Record:
        forward = None
        if self._engine is not None:
            length = len(self._engine.tokenize([row.text])[0])
            forward = [_forward_tokens(trial, length) for trial in result.trials]
        record = to_record(row.id, result, group=row.group, seconds=seconds, forward_tokens=forward)
        return record.model_copy(update=dict.fromkeys(_OF_A_SEARCH)) if self._base else record


def _forward_tokens(trial: Trial, prompt_length: int) -> int:
    """Tokens through the model: every evaluation's own, and those of the likelihoods on average."""
    written = trial.generated_tokens + prompt_length * trial.evaluations
    return written + round(trial.likelihood_calls * written / trial.evaluations)


class BaselineMethod:
    """Another system, on the same prompts and seeds. `scorer` only measures what it wrote."""

    def __init__(
        self, name: str, baseline: Baseline, engine: Engine, scorer: Scorer, settings: Settings
    ) -> None:
        self.name, self.settings = name, settings
        common = {field: getattr(settings, field) for field in _OF_ALL if field != "num_trials"}
        self.config = {"baseline": baseline.config(), "sampling": common}
        self._baseline, self._scorer, self._max_batch = baseline, scorer, engine.max_batch

    def records(
        self, rows: Sequence[Row], trials: Sequence[int], *, ordered: bool = False
    ) -> Iterator[tuple[Row, Record | TideError]]:
        # As many prompts as fill a batch: a record is on disk as soon as its batch is done.
        size = max(1, self._max_batch // len(trials))
        for start in range(0, len(rows), size):
            yield from self._batch(rows[start : start + size], trials)

    def _batch(
        self, rows: Sequence[Row], trials: Sequence[int]
    ) -> Iterator[tuple[Row, Record | TideError]]:
        started, seed = time.perf_counter(), self.settings.seed
        prompts = [row.text for row in rows for _ in trials]
        seeds = [
            derive_seed(derive_seed(seed, row.text, trial), "sampling", 0)
            for row in rows
            for trial in trials
        ]
        try:
            generated = self._baseline.generate(prompts, self.settings.sampling, seeds)
        except InputError as error:
            if len(rows) == 1:
                yield rows[0], error
            else:  # find out whose fault it is, and let it fail alone
                for row in rows:
                    yield from self._batch([row], trials)
            return
        texts = [one.completion.text for one in generated]
        scores = score_texts(self._scorer, texts, self.settings.empty_policy)
        seconds = (time.perf_counter() - started) / len(rows)
        for number, row in enumerate(rows):
            mine = slice(number * len(trials), (number + 1) * len(trials))
            lengths = [len(one.completion.token_ids) for one in generated[mine]]
            yield (
                row,
                Record(
                    id=row.id,
                    prompt=row.text,
                    group=row.group,
                    trials=list(trials),
                    completions=texts[mine],
                    toxicity_scores=scores.values[mine].tolist(),
                    empty=scores.empty[mine].tolist(),
                    evaluations=[one.evaluations for one in generated[mine]],
                    rounds=[one.evaluations for one in generated[mine]],
                    num_tokens=lengths,
                    generated_tokens=lengths,
                    forward_tokens=[one.forward_tokens for one in generated[mine]],
                    scorer_calls=[one.scorer_calls for one in generated[mine]],
                    seconds=seconds,
                ),
            )


def load_method(
    spec: str,
    runner: LocalRunner | ClusterRunner,
    protocol: EvaluationProtocol,
    common: Mapping[str, Any],
    artefacts: Path | None = None,
) -> Method:
    """The method that `spec` names, under `protocol`; `common` settings win over the protocol.

    Settings of searches alone mean nothing for `base` and for baselines, and are not theirs.
    artefacts: folder of what `tide fit` learned, for baselines. Raises InputError for an unknown
    name or setting, and for a baseline that cannot run on this engine.
    """
    name, options = parse_spec(spec, "methods")
    if "num_trials" in options:
        raise InputError(f"methods: {spec}: num_trials must be the same for all (--trials)")
    if "strategy" in common:
        raise InputError("strategy: strategies are methods here; name them in --methods")
    is_search = name in {*PRESETS, *STRATEGIES.names()}
    common = {key: value for key, value in common.items() if is_search or key in _OF_ALL}
    rules = [protocol.sampling, {"num_trials": protocol.num_trials}]
    if not is_search and name != "base":
        standard, settings = Settings.of(*rules), Settings.of(*rules, common)
        return _baseline(spec, name, runner, standard, settings, artefacts)
    if name == "base":
        preset: Mapping[str, Any] = _BASE
    elif name in PRESETS:
        preset = preset_values(name, runner.model)
    else:
        preset = {**preset_values("auto", runner.model), "strategy": name}
    if is_search:
        rules.append(protocol.search)
    try:
        given = strategy_layer(preset.get("strategy", "tide"), options)
        settings = Settings.of(preset, *rules, common, given)
    except InputError as error:
        raise InputError(f"methods: {spec}: {error}") from None
    full_name = run_name(name, settings, Settings.of(preset, *rules))
    return SearchMethod(full_name, runner, settings, base=name == "base")


def method_of(detoxifier: Detoxifier, preset: str) -> SearchMethod:
    """What `detoxifier`, made with `preset`, does, as a method."""
    settings, runner = detoxifier.settings, LocalRunner(detoxifier.engine, detoxifier.scorer)
    values = preset_values(preset, runner.model)
    name = settings.strategy.partition(":")[0]
    if name == str(values.get("strategy", "tide")).partition(":")[0]:
        standard, name = Settings.of(values), name if preset == "auto" else preset
    else:
        standard = Settings.of(values, {"strategy": name})
    return SearchMethod(run_name(name, settings, standard), runner, settings)


def strategy_layer(strategy: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` as a layer of settings; those that no search has in common are the strategy's."""
    name, own = parse_spec(strategy, "strategy")
    common = {key: value for key, value in options.items() if key in Settings.model_fields}
    own |= {key: value for key, value in options.items() if key not in common}
    written = ",".join(f"{key}={value}" for key, value in own.items())
    return {**common, "strategy": f"{name}:{written}" if written else name}


def run_name(name: str, settings: Settings, standard: Settings) -> str:
    """`name` with every setting that differs from `standard`, the seed last, trials left out.

    So runs that differ in a setting have different names, whichever way it was given.
    """
    usual = standard.model_dump()
    found: dict[str, Any] = {}
    for key, value in settings.model_dump(exclude={"num_trials", "seed"}).items():
        if key == "strategy":
            own, usual_own = (parse_spec(spec)[1] for spec in (value, usual[key]))
            found |= {k: v for k, v in own.items() if usual_own.get(k) != v}
        elif value != usual[key] and not (value is None and key in _SCALES):
            found[key] = f"{value:g}" if isinstance(value, float) else value
    if settings.seed != standard.seed:
        found["seed"] = settings.seed
    written = ",".join(f"{key}={value}" for key, value in found.items())
    return f"{name}{',' if ':' in name else ':'}{written}" if written else name


def _baseline(
    spec: str,
    name: str,
    runner: LocalRunner | ClusterRunner,
    standard: Settings,
    settings: Settings,
    artefacts: Path | None,
) -> BaselineMethod:
    from tide.engines.local.engine import TransformersEngine  # noqa: PLC0415  (slow import)

    if name not in BASELINES.names():
        known = ", ".join(sorted({"base", *PRESETS, *STRATEGIES.names(), *BASELINES.names()}))
        raise InputError(f"methods: unknown {name!r}; known: {known}")
    engine = runner.engine if isinstance(runner, LocalRunner) else None
    if isinstance(engine, SharedEngine):
        engine = engine.engine
    if not (isinstance(runner, LocalRunner) and isinstance(engine, TransformersEngine)):
        raise InputError(
            f"methods: {name} reaches into the model: it needs --engine transformers, here"
        )
    baseline = load_baseline(spec, engine, artefacts=artefacts, scorer=runner.scorer)
    full_name = run_name(baseline.name, settings, standard)
    return BaselineMethod(full_name, baseline, engine, runner.scorer, settings)
