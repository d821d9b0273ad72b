"""Completions and likelihoods of rows, for scripts that are not asynchronous."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tide.core.settings import Sampling
from tide.engines import Completion, Engine, Request


def completed(
    engine: Engine,
    rows: Sequence[Tensor],
    sampling: Sampling,
    seeds: Iterable[int] | None = None,
) -> list[Completion]:
    """One completion of each row. seeds: one for each; without, their numbers."""
    numbers = range(len(rows)) if seeds is None else seeds
    asked = [Request(x, sampling, seed) for x, seed in zip(rows, numbers, strict=True)]
    return engine.portal.run(engine.complete, asked)


def likelihoods(
    engine: Engine, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> list[float]:
    """The mean log-probability of each completion's tokens after its prompt."""
    pairs = list(zip(prompts, completions, strict=True))
    return [one.mean for one in engine.portal.run(engine.log_likelihoods, pairs)]
