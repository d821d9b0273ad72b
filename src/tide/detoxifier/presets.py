"""Presets: published settings of four models, TIDE's own settings, and files.

A preset file is a JSON object: `{"tide_preset": 1, "settings": {"mu_relative": 1.1, ...}}`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tide.core.errors import InputError
from tide.core.settings import DEFAULT_STRATEGY, Settings, default_threshold
from tide.core.validation import problem, unknown
from tide.data.jsonl import read_object
from tide.plugins.specs import parse_spec
from tide.search import REGISTRY, resolve_settings

# Gemma multiplies its token embeddings by sqrt(2304) = 48. The published values apply to rows of
# its embedding table. TIDE's values apply to the input of the first block, after this scaling.
_GEMMA_SCALE = 48.0


# Settings of "Test-Time Detoxification without Training or Learning Anything".
PUBLISHED: dict[str, dict[str, Any]] = {
    name: {
        "strategy": "tide",
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

# The default preset of Python, command line and server.
DEFAULT = DEFAULT_STRATEGY


def preset_for(model: str) -> str:
    """Return the preset of a model id or folder by its name (`Qwen/Qwen3-4B-Base` -> `qwen3-4b`).

    Only the published models have presets; all other models get "relative".
    """
    name = re.sub(r"^meta-", "", Path(model).name.lower())
    for preset in PUBLISHED:
        if re.fullmatch(rf"{re.escape(preset)}(-(base|pt|it|instruct))?", name):
            return preset
    return "relative"


def preset_name(preset: str | Path, model: str, strategy: str | None = None) -> str:
    """Return the preset that "auto" stands for; return any other name unchanged.

    "auto" stands for the default preset. If `strategy` differs from the strategy of the default
    preset, "auto" stands for the preset of the model, which sets the scales of a search.
    """
    if preset != "auto":
        return str(preset)
    other = strategy is not None and strategy.partition(":")[0] != DEFAULT
    return preset_for(model) if other else DEFAULT


def preset_values(preset: str | Path, model: str, strategy: str | None = None) -> dict[str, Any]:
    """Return the settings of a preset, given a name or a file (.json); see also `preset_name`.

    Raises InputError for an unknown name, and for a file that is not a preset.
    """
    if is_file(preset):
        return read_preset(Path(preset))
    preset = preset_name(preset, model, strategy)
    if preset not in PRESETS:
        names = ["auto", *PRESETS]
        raise InputError(f"{unknown(preset, names, 'preset')}, or a .json file")
    return PRESETS[preset]


def is_file(preset: str | Path) -> bool:
    """Whether `preset` is the path of a file."""
    return str(preset).endswith(".json")


# Settings of the search, which a file may hold. The caller sets sampling, trials and
# `on_unresolved`.
TUNABLE = (
    *("strategy", "toxicity_threshold", "max_iterations", "num_samples", "mu", "mu_relative"),
    *("step_size", "step_relative", "perturb", "completions_per_evaluation"),
    "reject_degenerate",
)
_Value = str | bool | int | Annotated[float, Field(allow_inf_nan=False)] | None
_Values = Annotated[dict[str, _Value], Field(max_length=64)]


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    tide_preset: Literal[1]
    settings: _Values
    about: _Values = {}


def read_preset(path: Path) -> dict[str, Any]:
    """Read the settings of a preset file, which is untrusted.

    Raises InputError for a file that is not a preset, for settings that a preset must not set, and
    for an unregistered strategy, because loading it would run code of a file.
    """
    try:
        settings = _File.model_validate(read_object(path)).settings
    except ValidationError as error:
        raise InputError(f"{path}: not a preset: {problem(error)}") from None
    if others := settings.keys() - set(TUNABLE):
        raise InputError(
            f"{path}: a preset cannot set {min(others)!r}; it sets {', '.join(TUNABLE)}"
        )
    try:
        strategy, options = parse_spec(str(settings.get("strategy", DEFAULT_STRATEGY)), "strategy")
        if strategy not in REGISTRY.names():
            raise InputError(f"strategy: {strategy!r} is not one of {', '.join(REGISTRY.names())}")
        if others := options.keys() & set(Settings.model_fields) - set(TUNABLE):
            raise InputError(f"strategy: a preset cannot set {min(others)!r}")
        refuse_looser(resolve_settings(settings))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return dict(settings)


def refuse_looser(settings: Settings) -> None:
    """Raise InputError for a threshold above the default, which would accept more toxic text."""
    loosest = default_threshold("tide")
    if settings.toxicity_threshold > loosest:
        raise InputError(f"toxicity_threshold: a preset may not set more than {loosest}")
