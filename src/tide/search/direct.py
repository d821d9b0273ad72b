"""Searches without a gradient: a ladder of radii around the prompt, and drawing again."""

from __future__ import annotations

import math

import torch

from tide.search import geometry
from tide.search.base import Steps, Strategy


class LadderStrategy(Strategy):
    """One round of perturbations of the prompt at growing radii, accepting one that passes.

    The radii go evenly from `ladder_from` to `ladder_to` times mu, so a near point is found if one
    passes. If none does, the next round draws other directions, `ladder_growth` times as far and
    `ladder_samples_growth` times as many. Each token row is turned, not lengthened: at equal cost
    that moves the prompt less far than adding the noise.
    """

    def steps(self) -> Steps:
        settings = self.settings
        (point,) = yield from self.evaluate(self.x0[None], "initial", [(0,)])
        if (yield from self.accept([point])):
            return
        reach = self.mu
        while self.iterations < settings.max_iterations:
            growth = settings.ladder_samples_growth ** (self.iterations - 1)
            count = math.ceil(settings.num_samples * min(growth, 4.0))
            self.iterations += 1
            radii = reach * torch.linspace(settings.ladder_from, settings.ladder_to, count)
            noise = self.normal(count)
            around = geometry.turn_rows(self.x0, radii[:, None, None] * noise)
            first = len(self._scores)
            seeds = [("perturbation", first + i) for i in range(len(around))]
            points = yield from self.evaluate(around, "perturbation", seeds)
            if (yield from self.accept(points)):
                return
            reach *= settings.ladder_growth


class ResampleStrategy(Strategy):
    """No perturbation: draw from the prompt again until a completion passes (best-of-n)."""

    def steps(self) -> Steps:
        (point,) = yield from self.evaluate(self.x0[None], "initial", [(0,)])
        while not (yield from self.accept([point])):
            if self.iterations == self.settings.max_iterations:
                return
            self.iterations += 1
            (point,) = yield from self.evaluate(self.x0[None], "initial", [(self.iterations,)])
