"""Settings of `tide fit`: frozen, validated."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tide.config import one_line
from tide.errors import InputError


class FitSettings(BaseModel):
    """How the learned parts of baselines are trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=300, ge=1, description="Steps of each training.")
    batch_size: int = Field(default=32, ge=1, description="Texts in a step.")
    learning_rate: float = Field(default=1e-3, gt=0, description="Largest step size of AdamW.")
    rank: int = Field(default=16, ge=1, description="Rank of the LoRA updates.")
    max_tokens: int = Field(default=64, ge=8, description="Texts are cut to so many tokens.")
    max_texts: int = Field(default=20_000, ge=40, description="Most texts that are read.")
    seed: int = Field(default=0, ge=0, description="Seed of split, order and initial weights.")

    @classmethod
    def of(cls, **values: Any) -> FitSettings:
        """Validated settings. Raises InputError naming the field."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise InputError(one_line(error)) from None
