"""Optional dependencies, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from tide.core.errors import MissingDependencyError


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise MissingDependencyError naming the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingDependencyError(
            f"{module} is not installed; in a checkout of TIDE: pip install -e '.[{extra}]'"
        ) from error
