"""Engines, which run a language model as a black box. They know nothing of toxicity."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tide.core.errors import EngineError, InputError, guarded
from tide.plugins.registry import Registry

if TYPE_CHECKING:
    from torch.nn import Module

    from tide.engines.base import Engine


REGISTRY = Registry(
    "engine",
    {
        "transformers": "tide.engines.local.engine:TransformersEngine",
        "vllm": "tide.engines.vllm:VllmEngine",
        "openai": "tide.engines.openai.engine:OpenAIEngine",
        "none": "tide.engines.none:NoEngine",
    },
)


def engine_class(name: Any) -> Any:
    """Import the engine of a name. Raises InputError for anything else, as callers may pass."""
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InputError(f"engine: must be a name, not a {kind}; pass an engine object as `model`")
    return REGISTRY.load(name)


def load_engine(name: str, model: str | Path | Module, **options: Any) -> Engine:
    """Load a model into an engine.

    Args:
        name: "transformers", "vllm", "openai", "none", or a registered name.
        model: The model, as in `Detoxifier`.
        **options: Options of the engine; `tide methods NAME` lists them.

    Raises:
        InputError: `name` is not a string, the engine or an option is unknown, or the class is not
            an engine.
        EngineError: The model cannot be loaded.
    """
    if name == "transformers" and "base_url" in options:
        raise InputError("base_url: this engine runs the model itself; add --engine openai")
    create = engine_class(name)
    known = inspect.signature(create).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    if not takes_any and (unknown := [option for option in options if option not in known]):
        has = f"it has: {', '.join(known)}"
        raise InputError(f"engine {name!r} has no option {unknown[0]!r}; {has}")
    from tide.engines.base import Engine  # noqa: PLC0415  (slow import)

    with guarded(EngineError, f"engine {name!r} cannot be loaded"):
        engine = create(model, **options)
    if not isinstance(engine, Engine):
        raise InputError(f"engine {name!r}: made a {type(engine).__name__}, not a tide.Engine")
    return engine
