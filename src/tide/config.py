"""Settings of a run: frozen, validated, and the same in the library and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tide.errors import InputError

EmptyPolicy = Literal["zero", "score", "one"]
OnUnresolved = Literal["best", "refuse", "raise"]

# Absolute and relative name of a scale, and the relative default for models without published ones.
_SCALES = {("mu", "mu_relative"): 1.2, ("step_size", "step_relative"): 0.6}


class Sampling(BaseModel):
    """How the engine turns embeddings into a completion."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: int = Field(default=20, ge=1, description="Longest completion, in tokens.")
    temperature: float = Field(
        default=0.1, ge=0, allow_inf_nan=False, description="Sampling temperature; 0 is greedy."
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus mass that is kept; 1: all.")
    top_k: int = Field(
        default=0, ge=0, description="Most likely tokens that are kept; 0 keeps all."
    )


class Settings(Sampling):
    """Everything that decides the result of a run, apart from the model and the scorer.

    `mu` and `step_size` are absolute, in the units of the embeddings; `mu_relative` and
    `step_relative` are multiples of the prompt's own scale, which carries over between models
    (`mu_relative = mu * sqrt(d) / row_norm`, `step_relative = step_size / row_norm`). Give one of
    each pair; with neither, the relative default holds.
    """

    strategy: str = Field(default="tide", description="Search strategy.")
    toxicity_threshold: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="tau: a completion that scores below is accepted.",
    )
    max_iterations: int = Field(
        default=10, ge=1, description="K: most iterations; the prompt itself is 1."
    )
    num_samples: int = Field(
        default=8, ge=1, description="N: perturbations in one gradient estimate."
    )
    mu: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Perturbation scale, absolute."
    )
    mu_relative: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Perturbation scale: mu * sqrt(d) / row norm.",
    )
    step_size: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="eta: length of a step, absolute."
    )
    step_relative: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Length of a step: eta / row norm."
    )
    cosine_threshold: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="kappa: least cosine to the prompt; 0 is no constraint.",
    )
    normalization: Literal["token", "matrix"] = Field(
        default="token",
        description="Normalise the estimate by token row, or as one matrix (paper).",
    )
    projection: Literal["rotate", "nearest"] = Field(
        default="rotate",
        description="Back to the cone: keep the norm, or the nearest point (paper).",
    )
    perturb: Literal["content", "all"] = Field(
        default="content",
        description="Leave special tokens (BOS, role markers) alone, or move all rows.",
    )
    common_random_numbers: bool = Field(
        default=False, description="Share the sampling noise between a point and its perturbations."
    )
    completions_per_evaluation: int = Field(
        default=1,
        ge=1,
        description="M': a point's score is their mean.",
    )
    antithetic: bool = Field(default=False, description="Draw perturbations in pairs U, -U.")
    estimator: Literal["difference", "rank"] = Field(
        default="difference", description="Weigh perturbations by score differences, or by ranks."
    )
    select: Literal["likelihood", "nearest", "lowest"] = Field(
        default="likelihood",
        description="Which of several passing completions: most likely after the unmodified "
        "prompt, nearest to it, or least toxic.",
    )
    max_perplexity: float | None = Field(
        default=None,
        gt=1,
        allow_inf_nan=False,
        description="Search on while a passing completion is less likely than this after the "
        "unmodified prompt.",
    )
    perplexity_growth: float = Field(
        default=1.0,
        ge=1,
        allow_inf_nan=False,
        description="Growth of max_perplexity with each iteration after the second.",
    )
    ladder_from: float = Field(
        default=0.2, gt=0, allow_inf_nan=False, description="ladder: smallest radius, times mu."
    )
    ladder_to: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="ladder: largest radius, times mu."
    )
    ladder_growth: float = Field(
        default=1.5, ge=1, allow_inf_nan=False, description="ladder: growth of the radii by round."
    )
    ladder_samples_growth: float = Field(
        default=1.0,
        ge=1,
        allow_inf_nan=False,
        description="ladder: growth of the number of samples by round, up to 4 times.",
    )
    num_trials: int = Field(
        default=1, ge=1, description="M: independent runs (completions) per prompt."
    )
    seed: int = Field(
        default=0, ge=0, description="Seed; with the prompt and trial it fixes a run."
    )
    empty_policy: EmptyPolicy = Field(
        default="zero",
        description="Score of a completion of fewer than 3 visible characters: 0.0 (as published), "
        "the scorer's own, or 1.0.",
    )
    on_unresolved: OnUnresolved = Field(
        default="best",
        description="When nothing was accepted: the lowest-scoring text, none, or an error.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_scale_each(cls, values: dict[str, Any]) -> dict[str, Any]:
        for (absolute, relative), default in _SCALES.items():
            if values.get(absolute) is not None and values.get(relative) is not None:
                raise ValueError(f"give {absolute} or {relative}, not both")
            if values.get(absolute) is None and values.get(relative) is None:
                values = {**values, relative: default}
        return values

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> Settings:
        """Settings from `layers`, the later ones winning. Raises InputError (one line) if invalid.

        A layer that sets a scale, absolute or relative, replaces both of the layers before it, so
        that an explicit `mu` overrides the `mu_relative` of a preset.
        """
        values: dict[str, Any] = {}
        for layer in layers:
            for scale in _SCALES:
                if any(layer.get(name) is not None for name in scale):
                    values.update(dict.fromkeys(scale))
            values.update(layer)
        try:
            return cls(**values)
        except ValidationError as error:
            raise InputError(one_line(error)) from None

    @property
    def sampling(self) -> Sampling:
        return Sampling(**{name: getattr(self, name) for name in Sampling.model_fields})


def one_line(error: ValidationError) -> str:
    """All problems of a validation on one line, each with its field and what was given."""
    lines = []
    for problem in error.errors():
        name = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {message} (got {problem['input']!r})" if name else message)
    return "; ".join(lines)
