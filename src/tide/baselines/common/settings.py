"""Bounds of the baselines' options, and the settings of `tide fit`: frozen, validated."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tide.config import one_line
from tide.errors import InputError

# Ten times more than anybody uses. What is multiplied by more drowns the model's own logits in
# rounding, and ends in infinity.
Strength = Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]
# Each is read as a sequence of its own.
Candidates = Annotated[int, Field(ge=1, le=1_000)]


class FitSettings(BaseModel):
    """How the learned parts of baselines are trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The upper bounds are what memory and days of training allow, with room to spare.
    steps: int = Field(default=300, ge=1, le=1_000_000, description="Steps of each training.")
    batch_size: int = Field(default=32, ge=1, le=65_536, description="Texts in a step.")
    learning_rate: float = Field(
        default=1e-3, gt=0, le=1, description="Largest step size of AdamW."
    )
    rank: int = Field(default=16, ge=1, le=4_096, description="Rank of the LoRA updates.")
    max_tokens: int = Field(
        default=64, ge=8, le=1_000_000, description="Texts are cut to so many tokens."
    )
    max_texts: int = Field(
        default=20_000, ge=40, le=100_000_000, description="Most texts that are read."
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
