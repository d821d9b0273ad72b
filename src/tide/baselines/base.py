"""The interface of baselines: other detoxification systems, run on the same prompts and seeds.

Defines their protocol, the bounds of common options, and the settings of `tide fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

import tide.plugins.options
from tide.core.errors import TideError
from tide.core.settings import Sampling
from tide.engines.base import Completion

if TYPE_CHECKING:
    from torch import nn

Options = tide.plugins.options.Options

# Whether temperature, top-p and top-k are applied before the baseline shifts the logits, or after.
Order = Literal["warp-shift", "shift-warp"]
# The bound is ten times the largest value in use. With a larger factor the model's logits are lost
# in rounding errors, and sums overflow.
Strength = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
# Bounded because the model reads each candidate as a separate sequence.
Candidates = Annotated[int, Field(ge=1, le=10_000)]


class ScaleOptions(Options):
    """The options of systems whose strength is a multiple of their published effect."""

    scale: Strength = Field(
        default=1.0, description="Multiple of the effect: 0 is the model, 1 as published."
    )


@runtime_checkable
class Baseline(Protocol):
    """A detoxification system. name: normalised spec, for records.

    Its first option, the strength, scales the effect; at 0 greedy text is the model's own.
    """

    name: str

    def config(self) -> dict[str, Any]:
        """Return the JSON settings that determine the output, except model and sampling."""
        ...

    def generate(
        self, prompts: Sequence[str], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion | TideError]:
        """Complete the prompts, in order; each completion depends only on its prompt and seed.

        Its `read_tokens` is the number of tokens that all models read, auxiliary ones included.
        A prompt that cannot be completed gives its error, an InputError or CompletionError.
        Raises EngineError, and the scorer's errors.
        """
        ...

    def close(self) -> None: ...


# Defaults of a fit for models of up to 30 million parameters, and for larger models.
_SMALL = 3e7
_OF_SMALL: dict[str, Any] = {"steps": 500, "learning_rate": 2e-3, "rank": 32}
_OF_LARGE: dict[str, Any] = {"steps": 3_000, "learning_rate": 2e-4, "rank": 64}


class FitSettings(BaseModel):
    """Settings of `tide fit`; None stands for a default that depends on the model's size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(
        default=None,
        ge=1,
        description="Maximum steps of each training; the default depends on the model's size.",
    )
    batch_size: int = Field(default=32, ge=1, description="Texts per step.")
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="Peak learning rate of AdamW; the default depends on the model's size.",
    )
    rank: int | None = Field(
        default=None,
        ge=1,
        description="LoRA rank; the default depends on the model's size.",
    )
    max_tokens: int = Field(default=128, ge=8, description="Maximum tokens of a text.")
    max_texts: int = Field(default=50_000, ge=40, description="Maximum texts to train on.")
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of data split, order and initial weights."
    )

    def training(self, model: nn.Module) -> Training:
        """Return these settings, with None replaced by the defaults for the size of `model`."""
        size = sum(parameter.numel() for parameter in model.parameters())
        defaults = _OF_SMALL if size <= _SMALL else _OF_LARGE
        return Training(**{**defaults, **self.model_dump(exclude_none=True)})


class Training(FitSettings):
    """`FitSettings` with all defaults filled in."""

    steps: int
    learning_rate: float
    rank: int
