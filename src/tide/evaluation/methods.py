"""What `--methods` names: `base`, a search strategy or preset, a baseline; each with its settings.

`tide`, `fast`, `resample:temperature=1.0`, `tide:num_samples=16,mu_relative=0.6`, `rad:beta=50`...
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from tide.baselines import REGISTRY as BASELINES
from tide.baselines import Baseline, load_baseline
from tide.config import Sampling, Settings
from tide.data.prompts import Row
from tide.data.records import to_record
from tide.errors import InputError, TideError
from tide.evaluation.places import Cluster, Here
from tide.evaluation.protocols import Protocol as EvaluationProtocol
from tide.evaluation.sharing import SharedEngine
from tide.presets import PRESETS, preset_values
from tide.results import Result, Trial
from tide.scorers import Scorer, score_texts
from tide.search import REGISTRY as STRATEGIES
from tide.seeds import derive_seed
from tide.specs import format_spec, parse_spec

# The model as it is: one draw and no search.
_BASE = {"strategy": "resample:n=1"}
# Settings that hold for methods without a search too.
_OF_ALL = (*Sampling.model_fields, "num_trials", "seed", "empty_policy")
# What a record says of a search, and means nothing where there was none.
_OF_A_SEARCH = ("accepted", "refused", "num_iter_steps", "cosine_sims", "displacements")

Record = dict[str, Any]


class Method(Protocol):
    """One column of a comparison. name: its spec. config: everything that decides its records.

    A record holds what `records.to_record` says and, for the judges, `returned_texts`: the
    completions as they were before any was withheld.
    """

    name: str
    config: dict[str, Any]

    def records(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Record | TideError]]:
        """The record of each row as it is finished, or why it has none; the others go on.

        Raises what concerns all rows: EngineError, ScorerUnavailable, ScorerError.
        """
        ...


class SearchMethod:
    """A search strategy, or (`base`) the model as it is."""

    def __init__(self, name: str, place: Here | Cluster, settings: Settings, *, base: bool) -> None:
        self.name = name
        self.config = {"settings": settings.model_dump()}
        self._complete = place.completer(settings)
        self._engine = place.engine if isinstance(place, Here) else None
        self._base = base

    def records(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Record | TideError]]:
        started = self._clock()
        for number, result in self._complete([row.text for row in rows]):
            spent = self._clock() - started
            row = rows[number]
            yield row, result if isinstance(result, TideError) else self._record(row, result, spent)
            started = self._clock()

    def _clock(self) -> float:
        """Seconds; what a shared base completion took counts for every method that used it."""
        return time.perf_counter() + (self._engine.seconds_saved if self._engine else 0.0)

    def _record(self, row: Row, result: Result, seconds: float) -> Record:
        record = to_record(row.id, result)
        record["returned_texts"] = [trial.returned.text for trial in result.trials]
        record["num_tokens"] = [trial.returned.num_tokens for trial in result.trials]
        if self._engine is not None:
            length = len(self._engine.tokenize([row.text])[0])
            record["forward_tokens"] = [_forward_tokens(trial, length) for trial in result.trials]
        record["seconds"] = seconds
        if self._base:
            for name in (*_OF_A_SEARCH, *(key for key in record if key.startswith("base_"))):
                del record[name]
        else:
            record["traces"] = [_trace(trial) for trial in result.trials]
            record["steps"] = [_steps(trial) for trial in result.trials]
        return record


def _forward_tokens(trial: Trial, prompt_length: int) -> int:
    """Tokens through the model: every evaluation's own, and those of the likelihoods on average."""
    written = trial.generated_tokens + prompt_length * trial.evaluations
    return written + round(trial.likelihood_calls * written / trial.evaluations)


def _trace(trial: Trial) -> list[list[Any]]:
    return [
        [e.round, e.iteration, e.role, e.toxicity, round(e.cosine, 6), round(e.displacement, 6)]
        for e in trial.trace
    ]


def _steps(trial: Trial) -> list[dict[str, Any]]:
    """What would be returned if the search were cut off: an entry for each time that changes.

    That is the least toxic completion so far, and from its own evaluation on the accepted one.
    """
    steps: list[dict[str, Any]] = []
    for number, evaluation in enumerate(trial.trace):
        accepted = trial.accepted and number == trial.chosen
        if accepted or not steps or evaluation.toxicity < steps[-1]["toxicity"]:
            steps.append(
                {
                    "evaluations": number + 1,
                    "text": evaluation.text,
                    "toxicity": evaluation.toxicity,
                }
            )
        if accepted:
            break
    return steps


class BaselineMethod:
    """Another system, on the same prompts and seeds. `scorer` only measures what it wrote."""

    def __init__(
        self, baseline: Baseline, engine: SharedEngine, scorer: Scorer, settings: Settings
    ) -> None:
        self.name = baseline.name
        common = {name: getattr(settings, name) for name in _OF_ALL}
        self.config = {"baseline": baseline.config(), **common}
        self._baseline, self._engine, self._scorer = baseline, engine, scorer
        self._settings = settings

    def records(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Record | TideError]]:
        trials = self._settings.num_trials
        # As many prompts as fill a batch: a record is on disk as soon as its batch is done.
        size = max(1, self._engine.max_batch // trials)
        for start in range(0, len(rows), size):
            yield from self._batch(rows[start : start + size])

    def _batch(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Record | TideError]]:
        started, trials = time.perf_counter(), self._settings.num_trials
        prompts = [row.text for row in rows for _ in range(trials)]
        seeds = [
            derive_seed(derive_seed(self._settings.seed, row.text, trial), "sampling", 0)
            for row in rows
            for trial in range(trials)
        ]
        try:
            generated = self._baseline.generate(prompts, self._settings.sampling, seeds)
        except InputError as error:
            if len(rows) == 1:
                yield rows[0], error
            else:  # find out whose fault it is, and let it fail alone
                for row in rows:
                    yield from self._batch([row])
            return
        texts = [one.completion.text for one in generated]
        scores = score_texts(self._scorer, texts, self._settings.empty_policy)
        seconds = (time.perf_counter() - started) / len(rows)
        for number, row in enumerate(rows):
            mine = slice(number * trials, (number + 1) * trials)
            toxicity = scores.values[mine].tolist()
            lengths = [len(one.completion.token_ids) for one in generated[mine]]
            yield (
                row,
                {
                    "id": row.id,
                    "prompt": row.text,
                    "completions": texts[mine],
                    "returned_texts": texts[mine],
                    "toxicity_scores": toxicity,
                    "avg_toxicity": sum(toxicity) / len(toxicity),
                    "max_toxicity": max(toxicity),
                    "empty": scores.empty[mine].tolist(),
                    "evaluations": [one.evaluations for one in generated[mine]],
                    "rounds": [one.evaluations for one in generated[mine]],
                    "num_tokens": lengths,
                    "generated_tokens": lengths,
                    "forward_tokens": [one.forward_tokens for one in generated[mine]],
                    "scorer_calls": [one.scorer_calls for one in generated[mine]],
                    "seconds": seconds,
                },
            )


def load_method(
    spec: str,
    place: Here | Cluster,
    protocol: EvaluationProtocol,
    common: dict[str, Any],
    artefacts: Path | None = None,
) -> Method:
    """The method that `spec` names, under `protocol`; `common` settings win over the protocol.

    artefacts: folder of what `tide fit` learned, for baselines. Raises InputError for an unknown
    name or setting, and for a baseline that cannot run on this engine.
    """
    name, options = parse_spec(spec, "methods")
    if "num_trials" in options:
        raise InputError(f"methods: {spec}: num_trials must be the same for all (--trials)")
    rules = [protocol.sampling, {"num_trials": protocol.num_trials}]
    if name not in {"base", *PRESETS, *STRATEGIES.names()}:
        settings = Settings.of(*rules, common)
        return _baseline(spec, name, place, settings, artefacts)
    if name == "base":
        preset: dict[str, Any] = _BASE
    elif name in PRESETS:
        preset = preset_values(name, place.model)
    else:
        preset = {**preset_values("auto", place.model), "strategy": name}
    if name != "base":
        rules.append(protocol.search)
    strategy, own = parse_spec(preset.get("strategy", "tide"))
    chosen = {"strategy": format_spec(strategy, {**own, **options})}
    try:
        settings = Settings.of(preset, *rules, common, chosen)
    except InputError as error:
        raise InputError(f"methods: {spec}: {error}") from None
    return SearchMethod(spec, place, settings, base=name == "base")


def _baseline(
    spec: str, name: str, place: Here | Cluster, settings: Settings, artefacts: Path | None
) -> BaselineMethod:
    from tide.engines.local.engine import TransformersEngine  # noqa: PLC0415  (slow import)

    if name not in BASELINES.names():
        known = ", ".join(sorted({"base", *PRESETS, *STRATEGIES.names(), *BASELINES.names()}))
        raise InputError(f"methods: unknown {name!r}; known: {known}")
    engine = place.engine.engine if isinstance(place, Here) else None
    if not (isinstance(place, Here) and isinstance(engine, TransformersEngine)):
        raise InputError(
            f"methods: {name} reaches into the model: it needs --engine transformers, here"
        )
    baseline = load_baseline(spec, engine, artefacts=artefacts, scorer=place.scorer)
    return BaselineMethod(baseline, place.engine, place.scorer, settings)
