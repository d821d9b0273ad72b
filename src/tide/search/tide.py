"""TIDE: zeroth-order descent on the toxicity of the model's own completion (Algorithm 1).

The option `variant` chooses among three orders of work:

- `ours`: a point is tested before its perturbations are computed, and no point is evaluated twice.
- `paper`: Algorithm 1 to the letter. It does not test the prompt itself and takes K + 1 steps. It
  normalises the whole estimate, moves a point outside of the cone to the nearest point of the cone,
  and returns the last point if none passed.
- `published`: the authors' code and records. A point is completed again for the differences, and
  tested again if all differences are zero; if no point passed, the least toxic point is returned.
  `tide.evaluation.runs.carried` adds what the records carry over from trial to trial.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import chain
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from tide.plugins.options import Options
from tide.search import geometry
from tide.search.base import Part, Point, Steps, Strategy


def estimate_gradient(perturbations: Tensor, differences: Tensor, mu: float) -> Tensor:
    """Return the one-sided estimate `1/N * sum_i difference_i / mu * U_i` (step 1), shape (T, d).

    perturbations: U, shape (N, T, d), standard normal.
    differences: Phi(X + mu U_i) - Phi(X), shape (N,).

    The estimate is unbiased for the gradient of the Gaussian-smoothed Phi.
    """
    return torch.einsum("n,ntd->td", differences / mu, perturbations) / len(differences)


class StepOptions(Options):
    """Options of strategies that walk from point to point."""

    cosine_threshold: float = Field(
        default=0.2, ge=0, lt=1, description="Lowest cosine to the prompt; 0: no limit (kappa)."
    )
    variant: Literal["ours", "paper", "published"] = Field(
        default="ours",
        description="Order of work: ours; paper (Algorithm 1 to the letter); or published (as the "
        "authors' code and records).",
    )


class Walk(Strategy):
    """Steps from point to point until a point passes. A subclass chooses the directions."""

    options_class = StepOptions
    options: StepOptions
    # The evaluations of each point of the path.
    _path: tuple[range, ...] = (range(1),)

    @property
    def max_iterations(self) -> int:
        return self.settings.max_iterations + (self.options.variant == "paper")

    @property
    def best(self) -> int:
        if self._accepted is not None or self.options.variant == "ours":
            return super().best
        path = self._path[-1:] if self.options.variant == "paper" else self._path
        return min(chain(*path), key=self._scores.__getitem__)

    def _begin(self) -> Steps:
        if self.options.variant != "paper":
            yield from super()._begin()
            return
        self.iterations = 0
        (start,) = yield from self.evaluate(self.x0[None], "initial")
        yield from self.steps(start)

    def steps(self, start: Point) -> Steps:
        x, point, self._path = self.x0, start, (start.evaluations,)
        while self.iterations < self.max_iterations:
            direction = yield from self.descent_direction(x, point.score)
            self.iterations += 1
            if direction is not None:  # else the point stays, and new perturbations are drawn
                x = self.step(x, direction)
                (point,) = yield from self.evaluate(x[None], "iterate")
                self._path = (*self._path, point.evaluations)
            yield from self.accept([point])

    def step(self, x: Tensor, direction: Tensor) -> Tensor:
        """Move `x` by `step_size` against `direction`, and project the result onto the cone."""
        is_paper = self.options.variant == "paper"
        unit = geometry.normalize(direction, "matrix" if is_paper else "token")
        how = "nearest" if is_paper else "rotate"
        moved = x - self.step_size * unit
        return geometry.project(moved, self.x0, self.options.cosine_threshold, how)

    @abstractmethod
    def descent_direction(self, x: Tensor, score: float) -> Part[Tensor | None]:
        """Return the direction against which to step from `x` (movable, d), or None to stay."""


class TideStrategy(Walk):
    """The paper's algorithm. It accepts only points of the path. A passing perturbation is
    returned only if no point passes within `max_iterations` and it has the lowest score of all.
    """

    def descent_direction(self, x: Tensor, score: float) -> Part[Tensor | None]:
        """Evaluate perturbations of `x`; return the gradient estimate, or None if it is zero.

        Other variants than `ours` return an estimate of zero, so that `x` is evaluated again after
        a step of length 0.
        """
        if self.options.variant == "published":
            (point,) = yield from self.evaluate(x[None], "iterate")
            score = point.score
        nearby = x + self.mu * self.normal(self.settings.num_samples)
        perturbed = yield from self.evaluate(nearby, "perturbation")
        differences = self.differences([point.score for point in perturbed], score)
        if not differences.any():
            return None if self.options.variant == "ours" else torch.zeros_like(x)
        # The engine's input is rounded to its dtype, so the rounded perturbations are used.
        moves = (self.cast(nearby) - self.cast(x)) / self.mu
        return estimate_gradient(moves, differences.float(), self.mu)

    def differences(self, scores: list[float], score: float) -> Tensor:
        """Return the difference of each perturbation's score, float64, shape (N,)."""
        return torch.tensor(scores, dtype=torch.float64) - score


class ShuffledStrategy(TideStrategy):
    """Control at equal cost: `tide` with the scores permuted among the perturbations."""

    def differences(self, scores: list[float], score: float) -> Tensor:
        order = torch.from_numpy(self._generator.permutation(len(scores)))
        return super().differences(scores, score)[order]


class RandomWalkStrategy(Walk):
    """Takes steps as long as those of `tide`, but in random directions, without any estimate."""

    def descent_direction(self, x: Tensor, score: float) -> Part[Tensor | None]:
        yield from ()
        return self.normal(1)[0]


class ResampleStrategy(Strategy):
    """Draws completions of the unmodified prompt, at most `max_iterations`, until a completion
    passes (best-of-n).

    At temperature 0 all completions would be equal, so only one is drawn.
    """

    moves = False

    @property
    def max_iterations(self) -> int:
        return 1 if self.settings.temperature == 0 else self.settings.max_iterations

    def steps(self, start: Point) -> Steps:
        while True:
            self.iterations += 1
            draw = yield from self.evaluate(self.x0[None], "initial", [(self.iterations,)])
            yield from self.accept(draw)
