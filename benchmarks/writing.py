"""Completions and likelihoods by synchronous calls, for scripts and tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from tide.core.settings import Sampling
from tide.engines.base import Completion, Engine, Piece, Request
from tide.engines.local.engine import TransformersEngine


def completed(
    engine: Engine,
    prompts: Sequence[Sequence[int] | Tensor],
    sampling: Sampling | Sequence[Sampling],
    seeds: Iterable[int] | None = None,
) -> list[Completion]:
    """Complete each prompt once.

    sampling: one for all prompts, or one per prompt. seeds: one per prompt; default: its index.
    """
    samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    seeds = range(len(prompts)) if seeds is None else seeds
    asked = [Request(*row) for row in zip(prompts, samplings, seeds, strict=True)]
    return engine.portal.run(engine.complete, asked)


def likelihoods(
    engine: TransformersEngine,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
) -> list[float]:
    """Return the mean log-probability of each completion's tokens after its prompt."""
    pairs = list(zip(prompts, completions, strict=True))
    return engine.portal.run(engine.log_likelihoods, pairs)


async def pieces_of(engine: Engine, request: Request) -> list[Piece]:
    """Return the pieces of a completion."""
    return [piece async for piece in engine.write(request)]
