"""Step sizes of the method: those published for four models, and a default for all others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tide.errors import InputError

# Gemma multiplies its token embeddings by sqrt(2304) = 48. The published values are for the table's
# own rows; ours are for what the first block receives, so they carry the factor.
_GEMMA_SCALE = 48.0


def _published(mu: float, num_samples: int, step_size: float) -> dict[str, Any]:
    """Settings of "Test-Time Detoxification without Training or Learning Anything"."""
    scales = {"mu": mu, "num_samples": num_samples, "step_size": step_size}
    return {**scales, "empty_policy": "zero"}


PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2-large": _published(0.1, 8, 1.5),
    "gemma-2-2b": _published(0.05 * _GEMMA_SCALE, 8, 1.0 * _GEMMA_SCALE),
    "qwen3-4b": _published(0.01, 8, 0.65),
    "llama-3.1-8b": _published(0.03, 16, 0.3),
}
# the cheapest way found to an accepted completion at kept fluency (benchmarks/RESULTS.md)
_FAST: dict[str, Any] = {
    "strategy": "ladder:from=0.6,growth=1.3,samples_growth=1.5",
    "num_samples": 2,
    "mu_relative": 1.3,
    "max_perplexity": 12.0,
    "perplexity_growth": 2.0,
}
PRESETS: dict[str, dict[str, Any]] = {
    **PUBLISHED,
    "fast": _FAST,
    # what is accepted at 0.49 overfits the scorer: other scorers agree with a margin
    "margin": {**_FAST, "toxicity_threshold": 0.2},
    # any other model: the defaults, relative to the norm of the prompt's own rows
    "relative": {},
}


def preset_for(model: str) -> str:
    """The preset of a model id or folder, by its last name (`Qwen/Qwen3-4B-Base` -> `qwen3-4b`).

    Only the published models have one of their own: all others get "relative".
    """
    name = re.sub(r"^meta-", "", Path(model).name.lower())
    for preset in PUBLISHED:
        if re.fullmatch(rf"{re.escape(preset)}(-(base|pt|it|instruct))?", name):
            return preset
    return "relative"


def preset_values(preset: str, model: str) -> dict[str, Any]:
    """The settings of a preset; `"auto"` chooses by the model. Raises InputError if unknown."""
    if preset == "auto":
        preset = preset_for(model)
    if preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}; known: auto, {', '.join(PRESETS)}")
    return PRESETS[preset]
