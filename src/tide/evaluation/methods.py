"""What `--methods` names: `base`, any search strategy or preset, each with settings of its own.

`tide`, `fast`, `resample:temperature=1.0`, `tide:num_samples=16,mu_relative=0.6`...
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tide.config import Settings
from tide.detoxifier import Detoxifier
from tide.errors import InputError, TideError
from tide.evaluation.protocols import Protocol as EvaluationProtocol
from tide.evaluation.sharing import SharedEngine
from tide.inputs import Row
from tide.presets import PRESETS, preset_values
from tide.records import to_record
from tide.results import Result, Trial
from tide.scorers import Scorer
from tide.search import REGISTRY as STRATEGIES
from tide.specs import parse_spec

# The model as it is: one draw and no search.
_BASE = {"strategy": "resample", "max_iterations": 1}
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
    """A search strategy, or the model as it is."""

    def __init__(
        self, name: str, engine: SharedEngine, scorer: Scorer, settings: Settings, *, base: bool
    ) -> None:
        self.name = name
        self.config = {"settings": settings.model_dump()}
        self._detoxifier = Detoxifier(engine, scorer=scorer, settings=settings)
        self._engine = engine
        self._base = base

    def records(self, rows: Sequence[Row]) -> Iterator[tuple[Row, Record | TideError]]:
        texts = [row.text for row in rows]
        results = self._detoxifier.map_numbered(texts, ordered=False)
        started, saved = time.perf_counter(), self._engine.seconds_saved
        for number, result in results:
            # What a shared base completion took belongs to every method that used it.
            spent = time.perf_counter() - started + self._engine.seconds_saved - saved
            row = rows[number]
            yield row, result if isinstance(result, TideError) else self._record(row, result, spent)
            started, saved = time.perf_counter(), self._engine.seconds_saved

    def _record(self, row: Row, result: Result, seconds: float) -> Record:
        record = to_record(row.id, result)
        length = len(self._engine.tokenize([row.text])[0])
        record["returned_texts"] = [trial.returned.text for trial in result.trials]
        record["num_tokens"] = [trial.returned.num_tokens for trial in result.trials]
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


def load_method(
    spec: str,
    engine: SharedEngine,
    scorer: Scorer,
    protocol: EvaluationProtocol,
    common: dict[str, Any],
) -> Method:
    """The method that `spec` names, under `protocol`; `common` settings win over the protocol.

    Raises InputError for an unknown name or setting.
    """
    name, options = parse_spec(spec, "methods")
    is_search = True
    if name == "base":
        preset: dict[str, Any] = dict(_BASE)
        is_search = False
    elif name in PRESETS:
        preset = preset_values(name, engine.name)
    elif name in STRATEGIES.names():
        preset = {**preset_values("auto", engine.name), "strategy": name}
    else:
        known = ", ".join(sorted({"base", *PRESETS, *STRATEGIES.names()}))
        raise InputError(f"methods: unknown {name!r}; known: {known}")
    layers = [preset, protocol.sampling, {"num_trials": protocol.num_trials}]
    if is_search:
        layers.append(protocol.search)
    try:
        settings = Settings.of(*layers, common, options)
    except InputError as error:
        raise InputError(f"methods: {spec}: {error}") from None
    return SearchMethod(spec, engine, scorer, settings, base=name == "base")
