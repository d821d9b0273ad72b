"""Bounds of the baselines' options, and the settings of `tide fit`: frozen, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tide.core.errors import InputError
from tide.core.validation import one_line

if TYPE_CHECKING:
    from torch import nn

# Ten times the largest value in use. A larger factor drowns the model's logits in rounding errors,
# and overflows.
Strength = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
# Each candidate is read as a sequence of its own.
Candidates = Annotated[int, Field(ge=1, le=10_000)]


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
        description="Most steps of each training; by default by the size of the model.",
    )
    batch_size: int = Field(default=32, ge=1, le=65_536, description="Texts in a step.")
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Largest step size of AdamW; by default by the size of the model.",
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
        description="Most tokens of a text, which is cut; the default depends on the model.",
    )
    max_texts: int = Field(
        default=50_000, ge=40, le=100_000_000, description="Most texts that are read."
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="Seed of split, order and initial weights."
    )

    @classmethod
    def of(cls, **values: Any) -> FitSettings:
        """Validated settings. Raises InputError naming the field."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise InputError(one_line(error)) from None

    def training(self, model: nn.Module) -> Training:
        """These settings, with the defaults for the size of `model` in place of None."""
        size = sum(parameter.numel() for parameter in model.parameters())
        usual = next(values for most, values in _BY_SIZE if size <= most)
        asked = {name: value for name, value in self if value is not None}
        return Training(**{**usual, **asked})
