"""What an estimate is compared with: shuffled scores, a random walk, and drawing again."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tide.plugins.options import Options
from tide.search.base import Part, Point, Steps, Strategy
from tide.search.tide import TideStrategy, Walk


class ShuffledStrategy(TideStrategy):
    """Control at equal cost: `tide` with the scores permuted among the perturbations."""

    def weights(self, scores: list[float], score: float) -> Tensor:
        order = torch.from_numpy(self._generator.permutation(len(scores)))
        return super().weights(scores, score)[order]


class RandomWalkStrategy(Walk):
    """Steps of the same length as those of `tide`, in random directions: nothing is estimated."""

    def descent_direction(self, x: Tensor, score: float) -> Part[Tensor | None]:
        yield from ()
        return self.normal(1)[0]


class ResampleOptions(Options):
    n: int | None = Field(
        default=None, ge=1, le=10_000, description="Most completions; without it, max_iterations."
    )


class ResampleStrategy(Strategy):
    """No perturbation: draw from the prompt again until a completion passes (best-of-n).

    At temperature 0 every draw would be the same, so there is one.
    """

    options_class = ResampleOptions
    options: ResampleOptions
    moves = False

    @property
    def max_iterations(self) -> int:
        if self.settings.temperature == 0:
            return 1
        return self.options.n or self.settings.max_iterations

    def steps(self, start: Point) -> Steps:
        while True:
            self.iterations += 1
            draw = yield from self.evaluate(self.x0[None], "initial", [(self.iterations,)])
            yield from self.accept(draw)
