"""Protocol of a baseline: another detoxification system, run on the prompts and seeds of TIDE."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import tide.plugins.options
from tide.core.settings import Sampling
from tide.engines.base import Completion

_T = TypeVar("_T")

# Whether temperature, top-p and top-k come before the shift or after it.
Order = Literal["warp-shift", "shift-warp"]


@dataclass(frozen=True)
class Generated:
    """One completion of a baseline, and what it cost.

    evaluations: completions generated to get it. forward_tokens: tokens that passed through any
    model: prompt and generated, of every pass and every auxiliary model, up to its own end.
    scorer_calls: texts sent to the scorer.
    """

    completion: Completion
    evaluations: int
    forward_tokens: int
    scorer_calls: int


@runtime_checkable
class Baseline(Protocol):
    """A detoxification system. name: normalised spec, for records."""

    name: str

    def config(self) -> dict[str, Any]:
        """Everything that decides its output except model and sampling, as JSON values."""
        ...

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        """One completion for each prompt, in order; it depends only on the prompt's own seed.

        Raises InputError for a prompt that is empty or too long, and the scorer's errors.
        """
        ...

    def close(self) -> None: ...


def in_batches(
    work: Callable[[list[int]], Sequence[_T]], groups: Iterable[list[int]], size: int
) -> list[_T]:
    """The results of `work` for all rows, in the order of the rows.

    groups: all row numbers, once. `work` gets those of one group at a time, at most `size`, in
    their order, and returns one result for each.
    """
    results: dict[int, _T] = {}
    for group in groups:
        for start in range(0, len(group), size):
            rows = group[start : start + size]
            results.update(zip(rows, work(rows), strict=True))
    return [results[row] for row in range(len(results))]


class Options(tide.plugins.options.Options):
    """Options of one baseline.

    strength: the one that scales its effect. At strength 0 a baseline writes the same as the
    unmodified model.
    """

    strength: ClassVar[str]
