"""TIDE: zeroth-order descent on the toxicity of the model's own completion (Algorithm 1).

The order of work differs from the published code: a point is tested before its perturbations are
paid for, and no point is evaluated twice (design: "what the published loop wastes").
"""

from __future__ import annotations

import torch
from torch import Tensor

from tide.search import geometry
from tide.search.base import Steps, Strategy


def estimate_gradient(perturbations: Tensor, differences: Tensor, mu: float) -> Tensor:
    """One-sided estimate `1/N * sum_i difference_i / mu * U_i` (step 1), shape (T, d).

    perturbations: U, shape (N, T, d), standard normal.
    differences: Phi(X + mu U_i) - Phi(X), shape (N,).

    Unbiased for the gradient of the Gaussian-smoothed Phi. All-zero differences give zero.
    """
    return torch.einsum("n,ntd->td", differences / mu, perturbations) / len(differences)


class TideStrategy(Strategy):
    """The paper's algorithm. A passing point is accepted; a passing perturbation only counts when
    no point passed within `max_iterations`, as the lowest-scoring completion that is left.
    """

    def steps(self) -> Steps:
        settings = self.settings
        x, points, evaluated = self._x0, 0, 1
        (score,) = yield [self.candidate(x, "initial", self.sampling_seed(0))]
        while not self.passes(score):
            if self.iterations == settings.max_iterations:
                return
            noise = self.normal(settings.num_samples)
            seeds = [
                self.sampling_seed(points)
                if settings.common_random_numbers
                else self.sampling_seed("perturbation", evaluated + i)
                for i in range(settings.num_samples)
            ]
            nearby = [x + self.mu * u for u in noise]
            scores = yield [
                self.candidate(point, "perturbation", seed)
                for point, seed in zip(nearby, seeds, strict=True)
            ]
            evaluated += len(scores)
            # What the engine saw is rounded to its dtype; use the step it really took.
            centre = self.cast(x)
            taken = torch.stack([(self.cast(point) - centre) / self.mu for point in nearby])
            differences = torch.tensor(scores, dtype=torch.float64) - score
            self.iterations += 1
            if not differences.any():
                continue  # nothing learned: stay, and draw other perturbations
            gradient = estimate_gradient(taken, differences.float(), self.mu)
            direction = geometry.normalize(gradient, settings.normalization)
            x = geometry.project(
                x - self.step_size * direction,
                self._x0,
                settings.cosine_threshold,
                settings.projection,
            )
            points, evaluated = points + 1, evaluated + 1
            (score,) = yield [self.candidate(x, "iterate", self.sampling_seed(points))]
        self.accept_last()
