"""What a baseline is: another detoxification system, run on the same prompts and seeds as TIDE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import tide.plugins.options
from tide.core.settings import Sampling
from tide.engines.base import Completion

# Temperature, top-p and top-k first and then the shift, or the shift first.
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
        """All that decides its output beside model and sampling, fit for JSON."""
        ...

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Generated]:
        """One completion for each prompt, in order; what is drawn depends on its own seed alone.

        Raises InputError for a prompt that is empty or too long, and what the scorer raises.
        """
        ...

    def close(self) -> None: ...


class Options(tide.plugins.options.Options):
    """Options of one baseline. strength: the one that scales its effect.

    At strength 0 a baseline writes what the model itself does.
    """

    strength: ClassVar[str]
