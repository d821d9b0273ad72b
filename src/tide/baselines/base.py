"""The interface of a baseline: another detoxification system, run on the same prompts and seeds.

Its protocol, its options and their bounds, and the settings of `tide fit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from pydantic import BaseModel, ConfigDict, Field

import tide.plugins.options
from tide.core.settings import Sampling
from tide.engines.base import Completion

if TYPE_CHECKING:
    from torch import nn

_T = TypeVar("_T")
Options = tide.plugins.options.Options

# Whether temperature, top-p and top-k come before the shift or after it.
Order = Literal["warp-shift", "shift-warp"]
# Ten times the largest value in use. A larger factor drowns the model's logits in rounding errors,
# and overflows.
Strength = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
# Each candidate is read as a sequence of its own.
Candidates = Annotated[int, Field(ge=1, le=10_000)]


@dataclass(frozen=True)
class Generated:
    """One completion of a baseline, and its cost.

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
    """A detoxification system. name: normalised spec, for records.

    The option `strength` of its options scales its effect: at 0 it writes as the unmodified model.
    """

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


# Defaults of a fit for models of up to N parameters. A full fine-tune (rank 0) is what the authors
# did with models of the middle size; of a small one the updates would outweigh the model, and of a
# large one its gradients would not fit.
_BY_SIZE: tuple[tuple[float, dict[str, Any]], ...] = (
    (3e7, {"steps": 500, "learning_rate": 2e-3, "rank": 32, "max_tokens": 128}),
    (5e8, {"steps": 3_000, "learning_rate": 5e-5, "rank": 0, "max_tokens": 256}),
    (float("inf"), {"steps": 3_000, "learning_rate": 2e-4, "rank": 64, "max_tokens": 128}),
)


@dataclass(frozen=True)
class Training:
    """`FitSettings` with all defaults filled in."""

    steps: int
    batch_size: int
    learning_rate: float
    rank: int
    max_tokens: int
    max_texts: int
    seed: int


class FitSettings(BaseModel):
    """How the learned parts of baselines are trained; None: a default by the size of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The upper bounds lie above any training that fits into memory and into days.
    steps: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Maximum steps of each training; the default depends on the model's size.",
    )
    batch_size: int = Field(default=32, ge=1, le=65_536, description="Texts in a step.")
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Peak learning rate of AdamW; the default depends on the model's size.",
    )
    rank: int | None = Field(
        default=None,
        ge=0,
        le=4_096,
        description="Rank of the LoRA updates, 0: all weights; by default by the model's size.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=8,
        le=1_000_000,
        description="Maximum tokens of a text, cut there; the default depends on the model's size.",
    )
    max_texts: int = Field(
        default=50_000, ge=40, le=100_000_000, description="Maximum texts that are read."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of split, order and initial weights."
    )

    def training(self, model: nn.Module) -> Training:
        """These settings, with the defaults for the size of `model` in place of None."""
        size = sum(parameter.numel() for parameter in model.parameters())
        usual = next(values for most, values in _BY_SIZE if size <= most)
        asked = {name: value for name, value in self if value is not None}
        return Training(**{**usual, **asked})
