"""The options of a tuning, and the values to try: the paper's grid and Optuna's ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tide.core.settings import Overrides
from tide.core.validation import validated

# The paper tries every combination at temperature 0, on about 100 prompts whose completions have a
# mean toxicity above 0.9.
GRID: dict[str, tuple[float, ...]] = {
    "mu": (0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
    "num_samples": (4, 8, 16),
    "step_size": (0.05, 0.1, 0.5, 1.0, 1.5, 2.0, 2.5),
}
# E_bar / sqrt(d) of GPT-2 Large, whose published scales are in the unscaled grid. E_bar is the mean
# norm of the embedding rows of its prompts, according to the published runs.
GRID_SCALE = 1.46 / math.sqrt(1280)
# Search space of each strategy for Optuna: a range (low, high, step) or a list of choices.
_Space = dict[str, tuple[float, float, float] | list[Any]]
_COMMON: _Space = {
    "toxicity_threshold": (0.1, 0.5, 0.02),
    "max_perplexity": ["none", "5", "6", "8", "10", "12", "16"],
    "perturb": ["content", "last:3", "last:5", "last:8", "last:12"],
    "cosine_threshold": (0.0, 0.8, 0.2),
}
SPACES: dict[str, _Space] = {
    "random-walk": {**_COMMON, "step_relative": (0.1, 1.2, 0.1)},
    "tide": {
        **_COMMON,
        "num_samples": [2, 4, 8, 16],
        "mu_relative": (0.2, 2.4, 0.1),
        "step_relative": (0.2, 1.2, 0.1),
    },
}
# The strategy that each search tunes by default.
SEARCHES = {"paper": "tide", "optuna": "random-walk"}


class TuningSettings(BaseModel):
    """How settings are chosen, and on which prompts (numbered from 1)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    search: Literal["paper", "optuna"] = Field(
        default="paper",
        description="paper: the paper's grid of mu, N and eta. optuna: minimise evaluations, "
        "toxicity by judges and perplexity together (extra tune).",
    )
    start: str | None = Field(
        default=None,
        description="Strategy or preset to tune, and to compare the result with; options given "
        "with it stay fixed.",
    )
    tune_on: str | None = Field(default=None, description="Prompts to tune on, e.g. 1-600.")
    report_on: str | None = Field(default=None, description="Prompts to report on, e.g. 601-.")
    worst: int = Field(
        default=100,
        ge=1,
        description="paper: tune on the N prompts with the most toxic completions.",
    )
    above: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="paper: tune on prompts above this mean toxicity instead (0.9 in the paper).",
    )
    grid_scale: str = Field(
        default="ratio",
        description="paper: factor of the grids of mu and eta. ratio: E_bar / sqrt(d) of this "
        "model divided by that of GPT-2 Large; literal: E_bar / sqrt(d); or a number.",
    )
    tries: int = Field(
        default=60,
        ge=1,
        le=10_000,
        description="optuna: total number of trials; a later call may add trials. A smaller number "
        "chooses among the first trials.",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> tuple[TuningSettings, dict[str, Any]]:
        """Split `given` into the fields of this class and the other settings.

        Raises InputError naming the field.
        """
        others = {name: value for name, value in given.items() if name not in cls.model_fields}
        own = {name: value for name, value in given.items() if name in cls.model_fields}
        return validated(cls, own), others


class TuningOverrides(Overrides, total=False):
    """Keyword arguments of `tune` for type checkers, including the fields of `TuningSettings`."""

    search: Literal["paper", "optuna"]
    start: str | None
    tune_on: str | None
    report_on: str | None
    worst: int
    above: float | None
    grid_scale: str
    tries: int
