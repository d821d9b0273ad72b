"""Our steps and the authors', with the same noise and a fixed scorer: points are equal to 1e-5.

The authors' steps are written here in plain torch, from the paper's equations (estimate, step,
projection; arXiv:2602.02498), and from reading `backward`, `normalize_grad` and `project_cosine`
in their repository (github.com/baturaysaglam/instant-detox, `utils/tide.py`). None of their code
is here. Their own functions, of commit 87fb8b9, gave the same points.

Our default variant steps as the code does, and `paper` as the paper's text. One difference remains:
for a negative cosine the code projects to -kappa, outside the cone, and ours to +kappa.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worlds import toxicity
from tide.core.settings import Settings
from tide.search import geometry
from tide.search.base import Problem
from tide.search.tide import StepOptions, TideStrategy

TOKENS, DIM, SAMPLES, STEPS = 5, 16, 8, 5
MU, ETA = 0.3, 0.8


# The formulas, in float64.


def gradient(x: Tensor, noise: Tensor) -> Tensor:
    """1/N sum_i (h(x + mu u_i) - h(x)) / mu * u_i."""
    total = torch.zeros_like(x)
    for u in noise:
        total += (toxicity((x + MU * u).float()) - toxicity(x.float())) / MU * u
    return total / len(noise)


def by_row(g: Tensor) -> Tensor:
    return torch.stack([row / (row.square().sum().sqrt() + 1e-8) for row in g])


def by_matrix(g: Tensor) -> Tensor:
    return g / g.square().sum().sqrt()


def turned(x: Tensor, x0: Tensor, kappa: float) -> Tensor:
    """Outside the cone: the part across x0 shrinks until |cos| = kappa; the norm is kept."""
    along = (x * x0).sum() / (x0 * x0).sum() * x0
    if (x * x0).sum() >= kappa * x.norm() * x0.norm():
        return x
    across = x - along
    shrunk = across / across.norm() * along.norm() * (1 / kappa**2 - 1) ** 0.5
    return (along + shrunk) / (along + shrunk).norm() * x.norm()


def nearest(x: Tensor, x0: Tensor, kappa: float) -> Tensor:
    """Outside the cone: the point on the ray at cosine kappa, in the plane of x and x0, at
    which the rest of x is orthogonal to the ray.
    """
    axis = x0 / x0.norm()
    along = (x * axis).sum()
    if along >= kappa * x.norm():
        return x
    across = (x.square().sum() - along**2).sqrt()
    sine = (1 - kappa**2) ** 0.5
    ray = kappa * axis + sine * (x - along * axis) / across
    return (kappa * along + sine * across) * ray


class GivenNoise(TideStrategy):
    """`tide` with perturbations from a list."""

    noise: list[Tensor]

    def normal(self, count: int) -> Tensor:
        return self.noise.pop(0)


def start() -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    x0 = torch.randn(TOKENS, DIM, generator=generator)
    noise = [torch.randn(SAMPLES, TOKENS, DIM, generator=generator) for _ in range(STEPS)]
    return x0, noise


def our_points(x0: Tensor, noise: list[Tensor], **options: Any) -> list[Tensor]:
    most = STEPS - 1 if options.get("variant") == "paper" else STEPS + 1
    settings = Settings(
        mu=MU, step_size=ETA, num_samples=SAMPLES, max_iterations=most, toxicity_threshold=1e-9
    )
    everything = torch.ones(TOKENS, dtype=torch.bool)
    strategy = GivenNoise(Problem(x0, everything, 0), settings, StepOptions(**options))
    strategy.noise = list(noise)
    points = []
    while not strategy.done:
        asked: Any = strategy.ask()
        points += [candidate.embeddings for candidate in asked if candidate.role == "iterate"]
        strategy.tell([toxicity(candidate.embeddings) for candidate in asked])
    return points


@pytest.mark.parametrize(
    ("variant", "normalized", "projected", "kappa"),
    [
        pytest.param("ours", by_row, turned, 0.0, id="the code without a constraint"),
        pytest.param("ours", by_row, turned, 0.99, id="the code"),
        pytest.param("paper", by_matrix, nearest, 0.0, id="the text without a constraint"),
        pytest.param("paper", by_matrix, nearest, 0.997, id="the text"),
    ],
)
def test_five_iterations_are_the_authors(
    variant: str, normalized: Any, projected: Any, kappa: float
) -> None:
    x0, noise = start()
    ours = our_points(x0, noise, cosine_threshold=kappa, variant=variant)
    assert len(ours) == STEPS
    x, axis = x0.double(), x0.double()
    for u, point in zip(noise, ours, strict=True):
        x = x - ETA * normalized(gradient(x, u.double()))
        if kappa:
            is_outside = geometry.cosine(x, axis) < kappa
            x = projected(x, axis, kappa)
        torch.testing.assert_close(point.double(), x, rtol=0, atol=1e-5)
    assert not kappa or is_outside
