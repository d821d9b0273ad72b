"""TIDE: zeroth-order descent on the toxicity of the model's own completion (Algorithm 1).

The order of work differs from the published code: a point is tested before its perturbations are
paid for, and no point is evaluated twice (design: "what the published loop wastes").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.stats import rankdata
from torch import Tensor

from tide.search import geometry
from tide.search.base import Part, Point, Steps, Strategy


def estimate_gradient(perturbations: Tensor, differences: Tensor, mu: float) -> Tensor:
    """One-sided estimate `1/N * sum_i difference_i / mu * U_i` (step 1), shape (T, d).

    perturbations: U, shape (N, T, d), standard normal.
    differences: Phi(X + mu U_i) - Phi(X), shape (N,).

    Unbiased for the gradient of the Gaussian-smoothed Phi. All-zero differences give zero. Where
    the perturbations are pairs U, -U, Phi(X) cancels and this is the antithetic estimate.
    """
    return torch.einsum("n,ntd->td", differences / mu, perturbations) / len(differences)


def centred_ranks(scores: Sequence[float]) -> Tensor:
    """Ranks of the scores spread over [-0.5, 0.5], float64, shape (N,); equal scores share one."""
    ranks = torch.from_numpy(rankdata(scores)) - 1.0
    return ranks / max(len(scores) - 1, 1) - 0.5 if len(scores) > 1 else torch.zeros(1).double()


class TideStrategy(Strategy):
    """The paper's algorithm. A passing point is accepted; a passing perturbation only counts when
    no point passed within `max_iterations`, as the lowest-scoring completion that is left.
    """

    def steps(self) -> Steps:
        x, points = self.x0, 0
        (point,) = yield from self.evaluate(x[None], "initial", [(0,)])
        while not (yield from self.accept([point])):
            if self.iterations == self.settings.max_iterations:
                return
            direction = yield from self.descent_direction(x, point.score, points)
            if self._accepted is not None:
                return
            self.iterations += 1
            if direction is None:
                continue  # nothing learned: stay, and draw other perturbations
            points += 1
            x = self.step(x, direction)
            (point,) = yield from self.evaluate(x[None], "iterate", [(points,)])

    def step(self, x: Tensor, direction: Tensor) -> Tensor:
        """`x` moved by `step_size` against `direction`, put back into the cone if it left it."""
        moved = x - self.step_size * geometry.normalize(direction, self.settings.normalization)
        kappa, projection = self.settings.cosine_threshold, self.settings.projection
        return geometry.project(moved, self.x0, kappa, projection)

    def descent_direction(self, x: Tensor, score: float, points: int) -> Part[Tensor | None]:
        """Evaluate the perturbations of `x` and estimate the gradient; None if it is zero."""
        noise = self.draw_perturbations()
        evaluated = len(self._scores)
        seeds: list[tuple[int | str, ...]] = [
            (points,) if self.settings.common_random_numbers else ("perturbation", evaluated + i)
            for i in range(len(noise))
        ]
        nearby = x + self.mu * noise
        perturbed = yield from self.evaluate(nearby, "perturbation", seeds)
        if (yield from self.after_perturbations(perturbed)):
            return None
        weights = self.weights([point.score for point in perturbed], score)
        if not weights.any():
            return None
        # What the engine saw is rounded to its dtype; use the step it really took.
        taken = (self.cast(nearby) - self.cast(x)) / self.mu
        return estimate_gradient(taken, weights.float(), self.mu)

    def draw_perturbations(self) -> Tensor:
        """Standard normal noise, shape (N, movable, d); with `antithetic` in pairs U, -U."""
        count = self.settings.num_samples
        if not self.settings.antithetic:
            return self.normal(count)
        half = self.normal((count + 1) // 2)
        return torch.cat([half, -half])[:count]

    def weights(self, scores: list[float], score: float) -> Tensor:
        """What the perturbations weigh in the estimate, float64, shape (N,)."""
        if self.settings.estimator == "rank":
            return centred_ranks(scores)
        return torch.tensor(scores, dtype=torch.float64) - score

    def after_perturbations(self, perturbed: list[Point]) -> Part[bool]:
        """Whether the search ends with one of the perturbed points: never, in the paper."""
        yield from ()
        return False


class AcceptAnyStrategy(TideStrategy):
    """As `tide`, but a perturbed point that passes is accepted at once; of several, by `select`."""

    def after_perturbations(self, perturbed: list[Point]) -> Part[bool]:
        return (yield from self.accept(perturbed))


class ShuffledStrategy(TideStrategy):
    """Control at equal cost: `tide` with the scores permuted among the perturbations."""

    def weights(self, scores: list[float], score: float) -> Tensor:
        order = torch.from_numpy(self._generator.permutation(len(scores)))
        return super().weights(scores, score)[order]


class RandomWalkStrategy(TideStrategy):
    """Control without an estimate: steps of the same length in random directions."""

    def descent_direction(self, x: Tensor, score: float, points: int) -> Part[Tensor | None]:
        yield from ()
        return self.normal(1)[0]
