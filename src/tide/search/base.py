"""The ask/tell protocol of a search, and the base that the project's own strategies share.

A strategy proposes prompt embeddings and learns their toxicity scores. It knows no model and no
text, so every strategy and every control runs on every engine and scorer:

    strategy = TideStrategy(problem, settings)
    while not strategy.done:
        candidates = strategy.ask()
        strategy.tell([score_of(candidate) for candidate in candidates])
    strategy.best        # number of the evaluation to return, counted in the order they were asked
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tide.config import Settings
from tide.search import geometry
from tide.seeds import derive_seed

Role = Literal["initial", "iterate", "perturbation"]


@dataclass(frozen=True)
class Problem:
    """One run of one prompt: where the search starts and what it draws from.

    x0: embeddings of the prompt, float32, shape (T, d).
    movable: bool mask, shape (T,): rows that may be changed (special tokens stay as they are).
    seed: seed of this run; equal seeds give equal trajectories.
    dtype: what the engine computes in; candidates are rounded to it before they are used.
    """

    x0: Tensor
    movable: Tensor
    seed: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Candidate:
    """Embeddings to evaluate: shape (T, d), float32 holding values of the engine's dtype.

    `cosine` and `displacement` (|X - X0| / |X0|) are taken over the movable rows.
    """

    embeddings: Tensor
    role: Role
    iteration: int
    sampling_seed: int
    cosine: float
    displacement: float


@runtime_checkable
class SearchStrategy(Protocol):
    """What the scheduler needs of a strategy."""

    @property
    def done(self) -> bool: ...

    @property
    def iterations(self) -> int: ...

    @property
    def best(self) -> int: ...

    def ask(self) -> Sequence[Candidate]: ...

    def tell(self, scores: Sequence[float]) -> None: ...


# Yields the candidates of a round and is sent their scores.
Steps = Generator[list[Candidate], list[float], None]


class Strategy(ABC):
    """Ask/tell over one generator: a subclass writes its algorithm as `steps`, top to bottom.

    `best` is the evaluation that was accepted, else the lowest-scoring one. `iterations` counts as
    the paper does: the prompt itself is 1.
    """

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem = problem
        self.settings = settings
        self.iterations = 1
        self.done = False
        self._x0 = problem.x0[problem.movable]
        if self._x0.numel() == 0:
            raise ValueError("no movable row: the prompt has only special tokens")
        row_norm, dim = float(self._x0.norm(dim=-1).mean()), self._x0.shape[-1]
        self.mu = settings.mu or (settings.mu_relative or 0.0) * row_norm / math.sqrt(dim)
        self.step_size = settings.step_size or (settings.step_relative or 0.0) * row_norm
        self._generator = np.random.Generator(np.random.PCG64(derive_seed(problem.seed, "search")))
        self._told: list[float] = []
        self._accepted: int | None = None
        self._steps = self.steps()
        self._pending: list[Candidate] | None = next(self._steps)

    @abstractmethod
    def steps(self) -> Steps:
        """The algorithm: yield the candidates of a round, receive their scores; return to end."""

    def ask(self) -> Sequence[Candidate]:
        """The candidates of the next round. Raises RuntimeError when the search is done."""
        if self._pending is None:
            raise RuntimeError("the search is done; there is nothing left to ask")
        return self._pending

    def tell(self, scores: Sequence[float]) -> None:
        """The scores, in [0, 1], of the candidates last asked, in their order."""
        if self._pending is None or len(scores) != len(self._pending):
            expected = len(self._pending or ())
            raise ValueError(f"tell: {expected} scores were asked for, got {len(scores)}")
        if not all(0.0 <= score <= 1.0 for score in scores):
            raise ValueError("tell: a score is not a number in [0, 1]")
        self._told.extend(scores)
        try:
            self._pending = self._steps.send(list(scores))
        except StopIteration:
            self._pending, self.done = None, True

    @property
    def best(self) -> int:
        """Number of the accepted evaluation, else of the (first) lowest-scoring one."""
        if self._accepted is not None:
            return self._accepted
        return min(range(len(self._told)), key=self._told.__getitem__)

    # For subclasses. `x` is always the movable rows alone, shape (movable, d), float32.

    def passes(self, score: float) -> bool:
        return score < self.settings.toxicity_threshold

    def accept_last(self) -> None:
        """Return the evaluation told last, even if another one scored lower."""
        self._accepted = len(self._told) - 1

    def cast(self, x: Tensor) -> Tensor:
        """`x` as the engine will see it: rounded to its dtype, as float32."""
        return x.to(self.problem.dtype).float()

    def candidate(self, x: Tensor, role: Role, sampling_seed: int) -> Candidate:
        rounded = self.cast(x)
        full = self.cast(self.problem.x0).clone()
        full[self.problem.movable] = rounded
        return Candidate(
            embeddings=full,
            role=role,
            iteration=self.iterations,
            sampling_seed=sampling_seed,
            cosine=geometry.cosine(rounded, self._x0),
            displacement=geometry.displacement(rounded, self._x0),
        )

    def sampling_seed(self, *parts: int | str) -> int:
        return derive_seed(self.problem.seed, "sampling", *parts)

    def normal(self, count: int) -> Tensor:
        """`count` matrices of standard normal noise, float32, shape (count, movable, d)."""
        shape = (count, *self._x0.shape)
        return torch.from_numpy(self._generator.standard_normal(shape, dtype=np.float32))
