"""The methods of `--methods`: `base`, a search strategy or preset, or a baseline, with settings.

Examples: `tide`, `backtrack`, `resample:temperature=1.0`, `tide:num_samples=16`, `rad:beta=50`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tide.baselines import REGISTRY as BASELINES
from tide.baselines import load_baseline, read_baseline
from tide.baselines.base import Baseline
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError, InputError, TideError, guarded, unknown
from tide.core.fingerprints import code_digest
from tide.core.results import Result
from tide.core.settings import DEFAULT_STRATEGY, Sampling, Settings, derive_seed
from tide.data.records import Record, TrialRecord, to_record
from tide.data.texts import Row
from tide.detoxifier.presets import PRESETS, preset_values
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines.base import Completion, Engine, name_of
from tide.evaluation.benchmarks import Protocol
from tide.plugins.options import Options, format_value
from tide.plugins.specs import format_spec, parse_spec
from tide.scorers.base import Exchange, Scorer, is_nearly_empty, score_groups
from tide.search import REGISTRY as STRATEGIES
from tide.search import load_strategy, resolve_settings

Outcomes = Iterator[tuple[Row, Record | TideError]]
# Settings of `base`: one completion of the unmodified model and no search.
_BASE = {"strategy": "resample", "max_iterations": 1}
# Settings of every method, even of one that does not search.
_OF_ALL = (*Sampling.model_fields, "num_trials", "seed")
# Absolute and relative scales; at most one of each pair is set.
_SCALES = ("mu", "mu_relative", "step_size", "step_relative")
# Fields that only records of a search have.
_OF_A_SEARCH = (
    *("accepted", "refused", "iterations", "cosine", "displacement", "trace"),
    *("base_text", "base_toxicity"),
)


class SearchMethod:
    """A search strategy, or (`base`) the unmodified model.

    name: the spec of the method with every setting that differs from the protocol. config: all
    that determines the records, except the number of trials. settings: the resolved settings.
    """

    def __init__(
        self,
        name: str,
        model: Engine | str,
        scorer: Scorer | str,
        settings: Settings,
        *,
        base: bool = False,
    ) -> None:
        self.name, self.settings = name, settings
        loaded = load_strategy(settings.strategy)
        self.config: dict[str, Any] = {
            "settings": _recorded(settings.model_dump(exclude={"num_trials"})),
            "strategy_options": loaded.options.model_dump(),
            "strategy_code": code_digest(loaded.strategy) or None,
        }
        self._model, self._scorer, self._base = model, scorer, base

    def records(
        self, rows: Sequence[Row], trials: Sequence[int], *, ordered: bool = False
    ) -> Outcomes:
        """Yield each row with its record of `trials`, or with its error.

        A row that fails does not affect the others. ordered: yield in the order of the rows.
        The rows run together, so the seconds of a record are those since the record before it.
        Raises the errors that abort all rows: EngineError, SCORER_DOWN, ScorerBrokenError.
        """
        detoxifier = Detoxifier(self._model, scorer=self._scorer, settings=self.settings)
        prompts = [row.asked for row in rows]
        started = time.perf_counter()
        for number, result in outcomes(detoxifier, prompts, ordered=ordered, trials=trials):
            row = rows[number]
            if isinstance(result, TideError):
                yield row, result
            else:
                yield row, self._record(row, result, time.perf_counter() - started)
            started = time.perf_counter()

    def _record(self, row: Row, result: Result, seconds: float) -> Record:
        about: dict[str, Any] = {"messages": row.messages, "group": row.group}
        record = to_record(row.id, result, seconds=seconds, **about)
        if not self._base:
            return record
        # As for a baseline, the scorer only measures the completion.
        changes = {**dict.fromkeys(_OF_A_SEARCH), "scorer_calls": 0}
        trials = [trial.model_copy(update=changes) for trial in record.trials]
        return record.model_copy(update={"trials": trials})


class BaselineMethod:
    """A baseline, run on the prompts and seeds of a search. `scorer` only scores the completions.

    Attributes and `records` are as in `SearchMethod`.
    """

    def __init__(
        self, name: str, baseline: Baseline, engine: Engine, scorer: Scorer, settings: Settings
    ) -> None:
        self.name, self.settings = name, settings
        common = {field: getattr(settings, field) for field in _OF_ALL if field != "num_trials"}
        self.config: dict[str, Any] = {
            "baseline": baseline.config(),
            "sampling": _recorded(common),
            "baseline_code": code_digest(type(baseline)) or None,
        }
        self._baseline, self._scorer, self._engine = baseline, scorer, engine

    def records(self, rows: Sequence[Row], trials: Sequence[int]) -> Outcomes:
        from tide.baselines.decoding import DecodingBaseline  # noqa: PLC0415  (torch)

        # Run one batch at a time, so that its records are on disk as soon as the batch is done.
        size = max(1, self._engine.max_batch // len(trials))
        try:
            if isinstance(self._baseline, DecodingBaseline):
                # The first call loads its models, which is no part of a text's time.
                self._generated([], [])
            for start in range(0, len(rows), size):
                yield from self._batch(rows[start : start + size], trials)
        finally:
            # Free the memory of the baseline's models for the next method.
            if (close := getattr(self._baseline, "close", None)) is not None:
                close()

    def _batch(self, rows: Sequence[Row], trials: Sequence[int]) -> Outcomes:
        # 1. Write. A row fails alone, with the first error of its trials.
        started = time.perf_counter()
        asked: list[tuple[Row, str]] = []
        for row in rows:
            try:
                asked.append((row, self._engine.text_of(row.asked)))
            except (InputError, CompletionError) as error:
                yield row, error
        prompts: list[str] = []
        seeds: list[int] = []
        for _, text in asked:
            for trial in trials:
                trial_seed = derive_seed(self.settings.seed, text, trial)
                prompts.append(text)
                seeds.append(derive_seed(trial_seed, "sampling", 0))
        outcomes = iter(self._generated(prompts, seeds))
        written: list[tuple[Row, str, list[Completion]]] = []
        for row, text in asked:
            of_row = list(itertools.islice(outcomes, len(trials)))
            completions = [outcome for outcome in of_row if isinstance(outcome, Completion)]
            if len(completions) == len(trials):
                written.append((row, text, completions))
            else:
                yield row, next(e for e in of_row if isinstance(e, TideError))

        # 2. Score.
        groups = [
            [Exchange(row.asked, completion.text) for completion in completions]
            for row, _, completions in written
        ]
        scored = score_groups(self._scorer, groups, is_nearly_empty)
        seconds = (time.perf_counter() - started) / max(1, len(prompts))

        # 3. Record.
        for (row, text, completions), scores in zip(written, scored, strict=True):
            if isinstance(scores, TideError):
                yield row, scores
                continue
            records = [
                TrialRecord(
                    number=trial,
                    text=completion.text,
                    toxicity=scores[i].value,
                    attributes=dict(scores[i].attributes),
                    empty=scores[i].unscored,
                    evaluations=1,
                    rounds=1,
                    num_tokens=len(completion.token_ids),
                    finish_reason=completion.finish_reason,
                    generated_tokens=len(completion.token_ids),
                    forward_tokens=completion.read_tokens,
                    scorer_calls=0,
                    seconds=seconds,
                )
                for i, (trial, completion) in enumerate(zip(trials, completions, strict=True))
            ]
            about: dict[str, Any] = {"messages": row.messages, "group": row.group}
            yield row, Record(id=row.id, prompt=text, trials=records, **about)

    def _generated(self, prompts: list[str], seeds: list[int]) -> list[Completion | TideError]:
        """Run the baseline. Raises EngineError if it fails, or breaks its protocol."""
        with guarded(EngineError, f"baseline {self._baseline.name}: failed"):
            generated = list(self._baseline.generate(prompts, self.settings, seeds))
        valid = all(isinstance(outcome, Completion | TideError) for outcome in generated)
        if not valid or len(generated) != len(prompts):
            problem = "`generate` must return a `Completion` or an error for each prompt"
            raise EngineError(f"baseline {self._baseline.name}: {problem}")
        return generated


Method = SearchMethod | BaselineMethod


@dataclass(frozen=True)
class MethodRules:
    """What the methods of one call share.

    common: settings that override those of the protocol; `base` and baselines ignore the settings
    that only searches have. artefacts: the folder that `tide fit` wrote, for baselines.
    """

    protocol: Protocol
    common: Mapping[str, Any] = field(default_factory=dict)
    artefacts: Path | None = None

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """The protocol's settings of every method."""
        trials = {"num_trials": self.protocol.num_trials, "accept_empty": True}
        return [self.protocol.sampling, trials]

    @property
    def of_all(self) -> dict[str, Any]:
        """The common settings that every method has."""
        return {key: value for key, value in self.common.items() if key in _OF_ALL}


def check_method(spec: str, model: str, rules: MethodRules) -> None:
    """Raise the InputErrors of `load_method` that do not depend on the loaded model.

    model: name of the model.
    """
    name, _ = parse_spec(spec, "methods")
    if name == "base" or _is_search(name):
        load_method(spec, model, "", rules)
    elif name not in BASELINES.names() and ":" not in name and not name.endswith(".py"):
        known = sorted({"base", *PRESETS, *STRATEGIES.names(), *BASELINES.names()})
        raise InputError(f"methods: {unknown(name, known)}")
    else:
        create, _ = read_baseline(spec)
        kind = create.artefact_kind() if hasattr(create, "artefact_kind") else ""
        if kind:
            from tide.baselines.artefacts import artefact_folder  # noqa: PLC0415  (slow import)

            artefact_folder(rules.artefacts, kind, model)


def load_method(spec: str, model: Engine | str, scorer: Scorer | str, rules: MethodRules) -> Method:
    """Load the method that `spec` names, which `check_method` has accepted.

    model, scorer: their names suffice to check a search.
    Raises InputError for an unknown setting, and for a baseline that cannot run on this engine.
    """
    resolve_settings(rules.common)  # an unknown setting is an error even if a method ignores it
    name, options = parse_spec(spec, "methods")
    _check_options(spec, name, options, rules.common)
    if name != "base" and not _is_search(name):
        return _load_baseline(spec, model, scorer, rules)
    preset: Mapping[str, Any] = _BASE
    layers: list[Mapping[str, Any]] = rules.layers
    common: Mapping[str, Any] = rules.of_all
    if name != "base":
        layers, common = [*layers, rules.protocol.search], rules.common
        preset = PRESETS.get(name) or _for_strategy(
            name, preset_values("auto", name_of(model), name)
        )
    variant = rules.protocol.variant
    try:
        settings = resolve_settings(
            preset, *layers, common, _with_options(preset, variant, options)
        )
    except InputError as error:
        raise InputError(f"methods: {spec}: {error}") from None
    standard = resolve_settings(preset, *layers, _with_options(preset, variant))
    full_name = run_name(name, settings, standard)
    return SearchMethod(full_name, model, scorer, settings, base=name == "base")


def _check_options(
    spec: str, name: str, options: Mapping[str, str], common: Mapping[str, Any]
) -> None:
    """Raise InputError for options that a method cannot have."""
    if "num_trials" in options:
        raise InputError(f"methods: {spec}: set num_trials for all methods (--trials)")
    if "strategy" in common or "strategy" in options:
        raise InputError("strategy: cannot be set here; name the strategy in --methods")
    if name == "base":
        for key in options:
            if key not in Settings.model_fields:
                raise InputError(f"methods: {spec}: {unknown(key, _OF_ALL, 'setting')}")
            if key not in _OF_ALL:
                raise InputError(f"methods: {spec}: {key} is a setting of searches")


def _for_strategy(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a preset, with the strategy replaced if it has another name."""
    same = parse_spec(values.get("strategy", DEFAULT_STRATEGY))[0] == name
    return values if same else {**values, "strategy": name}


def _with_options(
    values: Mapping[str, Any], variant: str, changes: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a preset's strategy with `variant`, if it has variants, and the changed options."""
    name, options = parse_spec(values.get("strategy", DEFAULT_STRATEGY))
    if "variant" in getattr(STRATEGIES.load(name), "options_class", Options).model_fields:
        options = {**options, "variant": variant}
    return {"strategy": format_spec(name, {**options, **(changes or {})})}


def check_chats(engine: Engine) -> None:
    """Raise InputError for a model without a chat template, which would refuse every chat."""
    if engine.has_chat_template:  # it may still refuse some chats, as without a system message
        return
    try:
        engine.text_of(Chat.said("Hello"))
    except InputError as error:
        raise InputError(f"--chat: {error}") from None


def method_of(detoxifier: Detoxifier, preset: str, *, chats: bool = False) -> SearchMethod:
    """Make a method for texts or `chats` from a detoxifier that was made with `preset`."""
    settings, engine = detoxifier.settings, detoxifier.engine
    name = parse_spec(settings.strategy)[0]
    values = preset_values(preset, engine.name, name)
    standard = _for_strategy(name, values)
    if standard is values and preset != "auto":
        name = preset
    usual = resolve_settings(standard)
    if chats:
        check_chats(engine)
        settings = settings.for_chat(engine.chat_sampling)
        usual = usual.for_chat(engine.chat_sampling)
    full_name = run_name(name, settings, usual)
    return SearchMethod(full_name, engine, detoxifier.scorer, settings)


def run_name(name: str, settings: Settings, standard: Settings) -> str:
    """Return `name` with every setting that differs from `standard`, except `num_trials`.

    The seed comes last. Different settings give different names, however they were passed.
    """
    usual, written = _written(standard), _written(settings)
    differing = {key: value for key, value in written.items() if usual.get(key) != value}
    head, options = parse_spec(name)
    return format_spec(head, {**options, **differing})


def _written(settings: Settings) -> dict[str, str]:
    """Format the settings and the strategy's options as in a spec."""
    values = settings.model_dump(exclude={"num_trials", "strategy", "seed"})
    values = {k: v for k, v in values.items() if v is not None or k not in _SCALES}
    values |= load_strategy(settings.strategy).options.model_dump() | {"seed": settings.seed}
    return {key: format_value(value) for key, value in values.items()}


def _recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings to the values that a configuration stores."""
    return {k: format_value(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _is_search(name: str) -> bool:
    """Whether `name` is a strategy or a preset. A class given by path may also be a baseline."""
    if ":" in name:
        return not hasattr(STRATEGIES.load(name), "generate")
    return name in {*PRESETS, *STRATEGIES.names()}


def _load_baseline(spec: str, model: Any, scorer: Any, rules: MethodRules) -> BaselineMethod:
    """Load a baseline, which refuses an engine that it cannot use."""
    baseline = load_baseline(spec, model, artefacts=rules.artefacts)
    settings = resolve_settings(*rules.layers, rules.of_all)
    full_name = run_name(baseline.name, settings, resolve_settings(*rules.layers))
    return BaselineMethod(full_name, baseline, model, scorer, settings)
