"""Where the searches of an evaluation run: in this process, or on a cluster of actors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tide.cluster import map_prompts
from tide.config import Settings
from tide.detoxifier import Detoxifier
from tide.errors import TideError
from tide.evaluation.sharing import SharedEngine
from tide.results import Result
from tide.scorers import Scorer

# Prompts to their numbers and results, as they finish.
Complete = Callable[[list[str]], Iterator[tuple[int, Result | TideError]]]


@dataclass(frozen=True)
class Here:
    """The process itself: one engine for all methods, which share what it wrote."""

    engine: SharedEngine
    scorer: Scorer

    @property
    def model(self) -> str:
        return self.engine.name

    def completer(self, settings: Settings) -> Complete:
        detoxifier = Detoxifier(self.engine, scorer=self.scorer, settings=settings)
        return functools.partial(detoxifier.map_numbered, ordered=False)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster: `actors` processes, each with an engine and a scorer of its own.

    scorer: by name, since each loads its own. address, cpus, gpus: see `tide.cluster.map_prompts`.
    """

    model: str
    scorer: str
    engine: str = "transformers"
    engine_options: dict[str, Any] = field(default_factory=dict)
    address: str = "local"
    actors: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def completer(self, settings: Settings) -> Complete:
        create = functools.partial(
            Detoxifier,
            self.model,
            scorer=self.scorer,
            engine=self.engine,
            engine_options=self.engine_options,
            settings=settings,
        )
        return functools.partial(
            map_prompts,
            create,
            cluster=self.address,
            actors=self.actors,
            cpus=self.cpus,
            gpus=self.gpus,
        )
