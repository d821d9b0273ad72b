"""Where the searches of an evaluation run: in this process, or on a cluster of actors."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tide.core.chat import Chat
from tide.core.errors import TideError
from tide.core.results import Result
from tide.core.settings import Settings
from tide.detoxifier.ray import map_prompts
from tide.detoxifier.sync import Detoxifier, outcomes
from tide.engines import Engine
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
        self,
        settings: Settings,
        prompts: Sequence[str | Chat],
        trials: Sequence[int],
        *,
        ordered: bool,
    ) -> Finished:
        """The trials of these numbers of each prompt; raises as `Detoxifier.map`."""
        detoxifier = Detoxifier(self.engine, scorer=self.scorer, settings=settings)
        return outcomes(detoxifier, prompts, ordered=ordered, trials=trials)


@dataclass(frozen=True)
class ClusterRunner:
    """A Ray cluster: `actors` processes, each with an engine and a scorer of its own.

    scorer: by spec, since each loads its own. address, cpus, gpus: see `map_prompts`.
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
        self,
        settings: Settings,
        prompts: Sequence[str | Chat],
        trials: Sequence[int],
        *,
        ordered: bool,
    ) -> Finished:
        """As `LocalRunner.complete`, never `ordered`; raises as `map_prompts`."""
        create = functools.partial(
            Detoxifier,
            self.model,
            scorer=self.scorer,
            engine=self.engine,
            engine_options=self.engine_options,
            settings=settings,
        )
        return map_prompts(
            create,
            prompts,
            trials=trials,
            cluster=self.address,
            actors=self.actors,
            cpus=self.cpus,
            gpus=self.gpus,
        )
