"""Completes prompts on a Ray cluster, with a pool of actors that each have a detoxifier.

Ray Data hands out the batches, restarts lost actors, and repeats their batches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tide.core.chat import Chat
from tide.core.errors import EngineError, InputError, TideError, first_line, require
from tide.core.results import Result
from tide.detoxifier.sync import Detoxifier, outcomes

_ALL = -1  # the number of an error that ends the whole call


def map_prompts(
    create: Callable[[], Detoxifier],
    prompts: Sequence[str | Chat],
    *,
    cluster: str = "local",
    actors: int = 1,
    batch: int = 32,
    gpus: float = 0.0,
) -> Iterator[tuple[int, Result | TideError]]:
    """Complete prompts with a pool of actors; yield each prompt's number and result as it ends.

    Yields the same as `outcomes(create(), prompts, ordered=False)`.

    create: makes an actor's detoxifier, such as `functools.partial(Detoxifier, "my-model",
    engine="vllm")`. cluster: "local" starts Ray on this machine, "auto" or "ray://HOST:PORT" uses a
    running cluster. batch: number of prompts that an actor gets at once; it returns their results
    together, and the whole batch is repeated if the actor is lost. gpus: GPUs of each actor.

    Every prompt is yielded once. A result depends only on the seed and its prompt, so the cluster
    does not change it. Raises MissingDependencyError without Ray, EngineError if the cluster cannot
    be reached or fails, and the errors of `create` and `Detoxifier.map`.
    """
    if isinstance(prompts, str):
        raise InputError("prompts: expected several texts, got one string; wrap it in a list")
    ray = require("ray", "ray")
    data = require("ray.data", "ray")
    _connect(ray, cluster)
    data.DataContext.get_current().enable_progress_bars = False
    if not prompts:
        return
    rows = [{"number": number} for number in range(len(prompts))]
    done = data.from_items(rows, override_num_blocks=math.ceil(len(rows) / batch)).map_batches(
        _Worker,
        fn_constructor_args=(create, prompts),
        batch_size=batch,
        compute=data.ActorPoolStrategy(size=actors),
        num_cpus=1,
        num_gpus=gpus,
    )
    try:
        for row in done.iter_rows():
            if row["number"] == _ALL:
                raise row["result"]
            yield row["number"], row["result"]
    except ray.exceptions.RayError as error:
        raise EngineError(f"the cluster failed: {first_line(error)}") from error


class _Worker:
    """An actor, which Ray calls with one batch after another.

    TIDE's errors are returned as rows, because Ray would turn an exception into a traceback.
    """

    def __init__(self, create: Callable[[], Detoxifier], prompts: Sequence[str | Chat]) -> None:
        self._create, self._prompts = create, prompts

    @cached_property
    def _detoxifier(self) -> Detoxifier:
        return self._create()

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Complete the prompts of these numbers; return the number and the result of each."""
        numbers = rows["number"].tolist()
        prompts = [self._prompts[number] for number in numbers]
        ended: list[int] = []
        results: list[Result | TideError] = []
        try:
            for index, result in outcomes(self._detoxifier, prompts, ordered=False):
                ended.append(numbers[index])
                results.append(result)
        except TideError as error:
            ended, results = [_ALL], [error]
        return {"number": np.array(ended), "result": np.array(results, dtype=object)}


def _connect(ray: Any, cluster: str) -> None:
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "error"}
    try:
        if cluster == "local":
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            ray.init(address=cluster, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(f"cluster {cluster!r} cannot be used: {first_line(error)}") from error
