"""Presets: published settings of four models, and TIDE's own settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, unknown
from tide.core.settings import DEFAULT_STRATEGY

# Gemma multiplies its token embeddings by sqrt(2304) = 48. The published values apply to rows of
# its embedding table. TIDE's values apply to the input of the first block, after this scaling.
_GEMMA_SCALE = 48.0


# Settings of "Test-Time Detoxification without Training or Learning Anything".
PUBLISHED: dict[str, dict[str, Any]] = {
    name: {
        "strategy": "tide",
        "toxicity_threshold": 0.5,
        "mu": mu,
        "num_samples": samples,
        "step_size": step,
        "accept_empty": True,
    }
    for name, mu, samples, step in (
        ("gpt2-large", 0.1, 8, 1.5),
        ("gemma-2-2b", 0.05 * _GEMMA_SCALE, 8, 1.0 * _GEMMA_SCALE),
        ("qwen3-4b", 0.01, 8, 0.65),
        ("llama-3.1-8b", 0.03, 16, 0.3),
    )
}
PRESETS: dict[str, dict[str, Any]] = {
    **PUBLISHED,
    # A cheap repair on any engine: the defaults of `Settings`.
    "backtrack": {"strategy": "backtrack"},
    # The search of all other models, with scales relative to the norm of the prompt's rows.
    "relative": {"strategy": "tide"},
}


def preset_for(model: str) -> str:
    """Return the preset of a model id or folder by its name (`Qwen/Qwen3-4B-Base` -> `qwen3-4b`).

    Only the published models have presets; all other models get "relative".
    """
    name = re.sub(r"^meta-", "", Path(model).name.lower())
    for preset in PUBLISHED:
        if re.fullmatch(rf"{re.escape(preset)}(-(base|pt|it|instruct))?", name):
            return preset
    return "relative"


def preset_name(preset: str, model: str, strategy: str | type | None = None) -> str:
    """Return the preset that "auto" stands for; return any other name unchanged.

    "auto" stands for the preset of the default strategy, which has its name. If `strategy` differs,
    "auto" stands for the preset of the model, which sets the scales of a search.
    """
    if preset != "auto":
        return preset
    if strategy is None:
        return DEFAULT_STRATEGY
    is_default = isinstance(strategy, str) and strategy.partition(":")[0] == DEFAULT_STRATEGY
    return DEFAULT_STRATEGY if is_default else preset_for(model)


def preset_values(preset: str, model: str, strategy: str | type | None = None) -> dict[str, Any]:
    """Return the settings of a preset by name; see also `preset_name`.

    Raises InputError for an unknown name.
    """
    preset = preset_name(preset, model, strategy)
    if preset not in PRESETS:
        raise InputError(unknown(preset, ["auto", *PRESETS], "preset"))
    return PRESETS[preset]
