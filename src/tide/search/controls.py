"""Searches without a gradient: a ladder of radii around the prompt, and drawing again."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field

from tide.plugins.options import Options
from tide.search import geometry
from tide.search.base import Point, Steps, Strategy

_Radius = Annotated[float, Field(gt=0, le=1000)]
_Growth = Annotated[float, Field(ge=1, le=100)]


class LadderOptions(Options):
    smallest: _Radius = Field(default=0.2, alias="from", description="Smallest radius, times mu.")
    largest: _Radius = Field(
        default=1.0, alias="to", description="Largest radius, times mu; a single sample sits there."
    )
    growth: _Growth = Field(default=1.5, description="Growth of the radii by round.")
    samples_growth: _Growth = Field(
        default=1.0, description="Growth of the number of samples by round, up to 4 times."
    )


class LadderStrategy(Strategy):
    """One round of perturbations of the prompt at growing radii, accepting one that passes.

    The radii go evenly from `from` to `to` times mu, so a near point is found if one passes. If
    none does, the next round draws other directions, `growth` times as far and `samples_growth`
    times as many. Each token row is rotated, not lengthened: at equal cost that moves the prompt
    less than adding the noise.
    """

    options_class = LadderOptions
    options: LadderOptions

    def steps(self, start: Point) -> Steps:
        options, reach = self.options, self.mu
        while True:
            growth = options.samples_growth ** (self.iterations - 1)
            count = math.ceil(self.settings.num_samples * min(growth, 4.0))
            self.iterations += 1
            smallest = options.smallest if count > 1 else options.largest
            radii = reach * torch.linspace(smallest, options.largest, count)
            around = geometry.turn_rows(self.x0, radii[:, None, None] * self.normal(count))
            yield from self.accept((yield from self.evaluate(around, "perturbation")))
            reach *= options.growth


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
