"""Where the searches of an evaluation run: in this process, or on a cluster of actors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tide.cluster import map_prompts
from tide.config import Settings
from tide.detoxifier import Detoxifier
from tide.engines import Engine
from tide.errors import TideError
from tide.results import Result
from tide.scorers import Scorer

# The number of each prompt and its result, as they finish.
Finished = Iterator[tuple[int, Result | TideError]]


@dataclass(frozen=True)
class LocalRunner:
    """The process itself: one engine for all methods."""

    engine: Engine
    scorer: Scorer

    @property
    def model(self) -> str:
        return self.engine.name

    def complete(
        self, settings: Settings, prompts: list[str], trials: Sequence[int], *, ordered: bool
    ) -> Finished:
        """The trials of these numbers of each prompt; raises as `Detoxifier.map_numbered`."""
        settings = _with_trials(settings, trials)
        detoxifier = Detoxifier(self.engine, scorer=self.scorer, settings=settings)
        run: Any = detoxifier.map_numbered
        if "trials" in inspect.signature(run).parameters:
            yield from run(prompts, ordered=ordered, trials=trials)
        else:
            yield from _only(trials, run(prompts, ordered=ordered))


@dataclass(frozen=True)
class ClusterRunner:
    """A Ray cluster: `actors` processes, each with an engine and a scorer of its own.

    scorer: by spec, since each loads its own. address, cpus, gpus: see `tide.cluster.map_prompts`.
    """

    model: str
    scorer: str
    engine: str = "transformers"
    engine_options: dict[str, Any] = field(default_factory=dict)
    address: str = "local"
    actors: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def complete(
        self, settings: Settings, prompts: list[str], trials: Sequence[int], *, ordered: bool
    ) -> Finished:
        """As `LocalRunner.complete`, never `ordered`; raises as `map_prompts`."""
        create = functools.partial(
            Detoxifier,
            self.model,
            scorer=self.scorer,
            engine=self.engine,
            engine_options=self.engine_options,
            settings=_with_trials(settings, trials),
        )
        done = map_prompts(
            create,
            prompts,
            cluster=self.address,
            actors=self.actors,
            cpus=self.cpus,
            gpus=self.gpus,
        )
        return _only(trials, done)


def _with_trials(settings: Settings, trials: Sequence[int]) -> Settings:
    return settings.model_copy(update={"num_trials": max(trials) + 1})


def _only(trials: Sequence[int], finished: Finished) -> Finished:
    """The trials of these numbers alone, where all were run."""
    for number, result in finished:
        if isinstance(result, Result):
            kept = tuple(trial for trial in result.trials if trial.number in trials)
            yield number, Result(prompt=result.prompt, trials=kept)
        else:
            yield number, result
