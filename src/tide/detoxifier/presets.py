"""Presets: settings published for four models, our own, and files of `tide tune`.

A preset file is a JSON object: `{"tide_preset": 1, "settings": {"mu_relative": 1.1, ...}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.core.validation import problem, unknown
from tide.data.files import opened, write_text
from tide.data.jsonl import parse_object
from tide.plugins.specs import parse_spec
from tide.search import REGISTRY, resolve_settings

# Gemma multiplies its token embeddings by sqrt(2304) = 48. The published values are for the table's
# own rows; ours are for the first block's input, so they include the factor.
_GEMMA_SCALE = 48.0


# Settings of "Test-Time Detoxification without Training or Learning Anything".
PUBLISHED: dict[str, dict[str, Any]] = {
    name: {"mu": mu, "num_samples": samples, "step_size": step, "empty_policy": "zero"}
    for name, mu, samples, step in (
        ("gpt2-large", 0.1, 8, 1.5),
        ("gemma-2-2b", 0.05 * _GEMMA_SCALE, 8, 1.0 * _GEMMA_SCALE),
        ("qwen3-4b", 0.01, 8, 0.65),
        ("llama-3.1-8b", 0.03, 16, 0.3),
    )
}
PRESETS: dict[str, dict[str, Any]] = {
    **PUBLISHED,
    # a cheap repair on any engine, followed by a random walk. It overfits its scorer, so its
    # threshold is low: at 0.2 other scorers find more toxic text
    "backtrack": {
        "strategy": "backtrack",
        "toxicity_threshold": 0.1,
        "reject_degenerate": True,
    },
    # any other model: the defaults, relative to the norm of the prompt's rows
    "relative": {},
}

# The default preset of Python, command line and server.
DEFAULT = "backtrack"


def preset_for(model: str) -> str:
    """The preset of a model id or folder, by its last name (`Qwen/Qwen3-4B-Base` -> `qwen3-4b`).

    Only the published models have their own; all others get "relative".
    """
    name = re.sub(r"^meta-", "", Path(model).name.lower())
    for preset in PUBLISHED:
        if re.fullmatch(rf"{re.escape(preset)}(-(base|pt|it|instruct))?", name):
            return preset
    return "relative"


def preset_name(preset: str | Path, model: str, strategy: str | None = None) -> str:
    """Resolve "auto".

    It means the default preset. For another `strategy` than that of the default, it means the
    preset of the model, which has the scales for a search over embeddings.
    """
    if preset != "auto":
        return str(preset)
    other = strategy is not None and strategy.partition(":")[0] != DEFAULT
    return preset_for(model) if other else DEFAULT


def preset_values(preset: str | Path, model: str, strategy: str | None = None) -> dict[str, Any]:
    """The settings of a preset by name or file (.json); "auto" as in `preset_name`.

    Raises InputError if it is unknown, and for a file that is not a preset.
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


# Settings that a file may hold: those of the search. The caller sets sampling, trials and
# `on_unresolved`.
TUNABLE = (
    *("strategy", "toxicity_threshold", "max_iterations", "num_samples", "mu", "mu_relative"),
    *("step_size", "step_relative", "perturb", "completions_per_evaluation", "select"),
    *("max_perplexity", "reject_degenerate"),
)
_LARGEST = 1 << 16  # bytes
_Value = str | bool | int | Annotated[float, Field(allow_inf_nan=False)] | None
_Values = Annotated[dict[str, _Value], Field(max_length=64)]


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    tide_preset: Literal[1]
    settings: _Values
    about: _Values = {}


def read_preset(path: Path) -> dict[str, Any]:
    """The settings in a preset file, which is untrusted.

    Raises InputError for a file that is not a preset, for settings that a preset must not set, and
    for a strategy that is not registered: it would run the code of a file.
    """
    with opened(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise InputError(f"{path}: has more than {_LARGEST >> 10} KiB: not a preset")
    try:
        settings = _File.model_validate(parse_object(content, str(path))).settings
    except ValidationError as error:
        raise InputError(f"{path}: not a preset: {problem(error)}") from None
    if others := settings.keys() - set(TUNABLE):
        raise InputError(
            f"{path}: a preset cannot set {min(others)!r}; it sets {', '.join(TUNABLE)}"
        )
    try:
        strategy, options = parse_spec(str(settings.get("strategy", "tide")), "strategy")
        if strategy not in REGISTRY.names():
            raise InputError(f"strategy: {strategy!r} is not one of {', '.join(REGISTRY.names())}")
        if others := options.keys() & set(Settings.model_fields) - set(TUNABLE):
            raise InputError(f"strategy: a preset cannot set {min(others)!r}")
        refuse_looser(resolve_settings(settings))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return dict(settings)


def refuse_looser(settings: Settings) -> None:
    """Raise InputError for settings that accept more than the default does."""
    if settings.toxicity_threshold > (loosest := Settings().toxicity_threshold):
        raise InputError(
            f"toxicity_threshold: a preset may not set more than the default of {loosest}"
        )


def write_preset(path: Path, settings: Settings, about: Mapping[str, Any]) -> None:
    """Write the settings that are not defaults as a preset file. about: notes for readers."""
    given, usual = settings.model_dump(), Settings().model_dump()
    # Each scale has two names; the unused one is None.
    chosen = {name: given[name] for name in TUNABLE if given[name] not in (None, usual[name])}
    chosen["strategy"] = settings.strategy
    content = {"tide_preset": 1, "settings": chosen, "about": dict(about)}
    write_text(path, json.dumps(content, indent=2) + "\n")
