"""The ask/tell protocol of a search, and the base class of TIDE's strategies.

A strategy proposes prompt embeddings and learns their toxicity scores. It sees neither the model
nor any text, so every strategy and every control runs on every engine and scorer:

    strategy = load_strategy("tide").create(problem, settings)
    while not strategy.done:
        strategy.tell([score_of(candidate) for candidate in strategy.ask()])
    strategy.best        # index of the evaluation to return, in the order of the candidates
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from tide.core.errors import InputError
from tide.core.results import Role
from tide.core.settings import Settings, derive_seed
from tide.plugins.options import Options
from tide.search import geometry


@dataclass(frozen=True)
class Problem:
    """The input of a search: a prompt, the rows that may move, and a seed.

    x0: embeddings of the prompt, float32, shape (T, d); for a strategy that does not move them, a
    placeholder.
    movable: bool mask, shape (T,), of the rows that may move (see `Settings.perturb`).
    seed: seed of this search; equal seeds give equal trajectories.
    dtype: dtype of the engine; candidates are rounded to this dtype before they are used.
    content: bool mask, shape (T,), of the rows over which the distance to the prompt is measured,
    a superset of `movable`; None means `movable`.
    """

    x0: Tensor
    movable: Tensor
    seed: int
    dtype: torch.dtype = torch.float32
    content: Tensor | None = None


@dataclass(frozen=True)
class Candidate:
    """Embeddings to evaluate, shape (T, d), float32, rounded to the engine's dtype.

    `cosine` and `displacement` (|X - X0| / |X0|) are measured over the rows of `Problem.content`.
    """

    embeddings: Tensor
    role: Role
    iteration: int
    sampling_seed: int
    cosine: float
    displacement: float


Returned = TypeVar("Returned")
# A generator for a part of an algorithm: it yields candidates, receives scores, returns a result.
Part = Generator[Sequence[Candidate], list[float], Returned]
Steps = Part[None]


@dataclass(frozen=True)
class Point:
    """An evaluated point: the mean score of its completions, and the indices of the evaluations."""

    score: float
    evaluations: range


class Strategy(ABC):
    """Implements ask/tell with one generator: a subclass writes its whole algorithm in `steps`.

    This class evaluates the prompt first, and ends the search as soon as an evaluation is accepted
    or the iterations are used up. `best` is the accepted evaluation, or else the evaluation with
    the lowest score. `iterations` counts the prompt itself as 1, as the paper does. `x0` holds the
    movable rows of the prompt. `mu` and `step_size` are the absolute scales. `options` is an
    instance of `options_class` with the options of the spec.

    moves: whether the strategy moves embeddings, so that it needs an engine with embeddings.

    Raises InputError if all rows of the prompt are zero and a scale is relative.
    """

    options_class: ClassVar[type[Options]] = Options
    options: Options
    moves: ClassVar[bool] = True

    def __init__(
        self, problem: Problem, settings: Settings, options: Options | None = None
    ) -> None:
        self.problem = problem
        self.settings = settings
        self.options = self.options_class() if options is None else options
        self.x0 = problem.x0[problem.movable]
        still = problem.movable if problem.content is None else problem.content
        self._still = float(problem.x0[still & ~problem.movable].norm())
        if self.x0.numel() == 0:
            raise ValueError("no movable row: the prompt has only special tokens")
        row_norm, dim = float(self.x0.norm(dim=-1).mean()), self.x0.shape[-1]
        if row_norm == 0 and None in (settings.mu, settings.step_size):
            raise InputError("prompt embeddings are all zero; set mu and step_size")
        self.mu = settings.mu or (settings.mu_relative or 0.0) * row_norm / math.sqrt(dim)
        self.step_size = settings.step_size or (settings.step_relative or 0.0) * row_norm
        self._generator = np.random.Generator(np.random.PCG64(derive_seed(problem.seed, "search")))
        self.iterations = 1
        self._points = 0
        self._centres = self.x0[None]
        self._scores: list[float] = []
        self._accepted: int | None = None
        self._search = self._begin()
        self._pending: Sequence[Candidate] = next(self._search)

    @abstractmethod
    def steps(self, start: Point) -> Steps:
        """Run the algorithm after the prompt itself (`start`) failed; return to end the search.

        Use `yield from` with the methods below: `evaluate` points, and `accept` one of the points.
        Increment `self.iterations` at the beginning of each iteration.
        """

    def _begin(self) -> Steps:
        (start,) = yield from self.evaluate(self.x0[None], "initial")
        yield from self.accept([start])
        yield from self.steps(start)

    @property
    def done(self) -> bool:
        """Whether the search has ended: with `steps`, or by an empty request (see `accept`)."""
        return not self._pending

    def ask(self) -> Sequence[Candidate]:
        """Return the next candidates; none if the search is done."""
        return self._pending

    def tell(self, values: Sequence[float]) -> None:
        """Receive the validated scores of the last candidates, in their order."""
        self._scores.extend(values)
        try:
            self._pending = self._search.send(list(values))
        except StopIteration:
            self._pending = ()
        if self.done:
            self.iterations = min(self.iterations, self.max_iterations)

    @property
    def max_iterations(self) -> int:
        return self.settings.max_iterations

    @property
    def best(self) -> int:
        """Index of the accepted evaluation, or of the first with the lowest score."""
        if self._accepted is not None:
            return self._accepted
        return min(range(len(self._scores)), key=self._scores.__getitem__)

    # Methods for subclasses. `x` holds only the movable rows: float32, shape (movable, d).

    def evaluate(
        self, points: Tensor, role: Role, seeds: Sequence[tuple[int | str, ...]] | None = None
    ) -> Part[list[Point]]:
        """Score `points` (n, movable, d), each by `completions_per_evaluation` completions.

        seeds: seeds of the sampling noise, one per point; equal seeds give equal noise. By default
        all seeds differ. Raises InputError for a perturbation that rounding removes.
        """
        if self.iterations > self.max_iterations:
            yield ()  # ends the search, as in `accept`
        rounded = self.cast(points)
        if role == "perturbation":
            self._check_moved(rounded)
            default_seeds: list[tuple[int | str, ...]] = [
                (role, len(self._scores) + i) for i in range(len(points))
            ]
        else:
            default_seeds = [(self._points + i,) for i in range(len(points))]
            self._points += len(points)
            self._centres = rounded
        repeats = self.settings.completions_per_evaluation
        first = len(self._scores)
        full = self.cast(self.problem.x0).repeat(len(points), 1, 1)
        full[:, self.problem.movable] = rounded
        cosines, displacements = geometry.measure(rounded, self.x0, self._still)
        candidates = []
        for x, cosine, displacement, seed in zip(
            full, cosines, displacements, seeds or default_seeds, strict=True
        ):
            sampling_seed = derive_seed(self.problem.seed, "sampling", *seed)
            once = Candidate(x, role, self.iterations, sampling_seed, cosine, displacement)
            candidates.append(once)
            for again in range(1, repeats):
                noise_seed = derive_seed(once.sampling_seed, "again", again)
                candidates.append(replace(once, sampling_seed=noise_seed))
        scores = yield candidates
        return [
            Point(fmean(scores[i : i + repeats]), range(first + i, first + i + repeats))
            for i in range(0, len(scores), repeats)
        ]

    def accept(self, points: Sequence[Point]) -> Part[None]:
        """Accept the first passing completion of the first of `points` that passes, if any does.

        Accepting ends the search, so this method returns only if nothing was accepted.
        """
        for point in points:
            if not self.settings.passes(point.score):
                continue
            for number in point.evaluations:
                if self.settings.passes(self._scores[number]):
                    self._accepted = number
                    yield ()  # `tell` ends the search here and never resumes this generator

    def cast(self, x: Tensor) -> Tensor:
        """Round `x` to the engine's dtype; return float32."""
        return x.to(self.problem.dtype).float()

    def _check_moved(self, rounded: Tensor) -> None:
        """Raise InputError if a perturbed point, once rounded, equals the unperturbed point."""
        if any(torch.equal(point, centre) for point in rounded for centre in self._centres):
            dtype = self.problem.dtype
            name = str(dtype).removeprefix("torch.")
            smallest = float(self._centres.abs().median()) * torch.finfo(dtype).eps / 2
            raise InputError(
                f"mu={self.mu:.3g}: {name} rounds a perturbation away; "
                f"the smallest mu that moves this prompt is about {smallest:.2g}"
            )

    def normal(self, count: int) -> Tensor:
        """`count` matrices of standard normal noise, float32, shape (count, movable, d)."""
        shape = (count, *self.x0.shape)
        return torch.from_numpy(self._generator.standard_normal(shape, dtype=np.float32))
