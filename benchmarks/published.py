"""The published loop's order of work, on our engine: what `tide` is measured against.

One prompt at a time; in each iteration three engine calls (X, its perturbations, X again), the
perturbations and the step paid for before the stop test, texts scored one by one. The arithmetic is
that of the `tide` strategy.
"""

from __future__ import annotations

import math

import torch
from writing import completed

from tide.core.settings import Settings
from tide.engines import Engine
from tide.scorers import Scorer, score_texts
from tide.search import geometry
from tide.search.tide import TideOptions, estimate_gradient


def published_loop(prompt: str, engine: Engine, scorer: Scorer, settings: Settings) -> int:
    """Detoxify one prompt; returns the completions that were generated and scored."""
    (x0,) = engine.embed([prompt])
    x = x0
    row_norm = float(x0.norm(dim=-1).mean())
    mu = settings.mu or (settings.mu_relative or 0.0) * row_norm / math.sqrt(x0.shape[-1])
    step_size = settings.step_size or (settings.step_relative or 0.0) * row_norm
    options = TideOptions()
    generator = torch.Generator().manual_seed(settings.seed)
    spent = 0

    def scores(points: list[torch.Tensor]) -> torch.Tensor:
        nonlocal spent
        seeds = [spent + i for i in range(len(points))]
        spent += len(points)
        completions = completed(engine, points, settings.sampling, seeds)
        one_by_one = [
            float(score_texts(scorer, [completion.text], settings.empty_policy).values[0])
            for completion in completions
        ]
        return torch.tensor(one_by_one)

    for _ in range(settings.max_iterations):
        centre = scores([x])
        u = torch.randn(settings.num_samples, *x.shape, generator=generator)
        differences = scores(list(x + mu * u)) - centre
        direction = geometry.normalize(estimate_gradient(u, differences, mu), options.normalization)
        moved = geometry.project(
            x - step_size * direction, x0, options.cosine_threshold, options.projection
        )
        if float(scores([x])) < settings.toxicity_threshold:
            break
        x = moved
    return spent
