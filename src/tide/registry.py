"""One lazy registry of names: `"name" -> "module:attribute"`, imported on first use.

A third party adds an engine, a scorer, a strategy or a baseline without touching the package,
either in code (`tide.scorers.REGISTRY.add("mine", "my_package.scorers:Mine")`) or by an entry point
of its distribution in the group `tide.engines`, `tide.scorers`, `tide.strategies` or
`tide.baselines`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from tide.errors import InputError, MissingDependencyError


class Registry:
    """Names of one kind of thing, each with the place it is imported from."""

    def __init__(self, kind: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self._targets: dict[str, Any] = dict(builtin)
        self._entry_points_read = False

    def add(self, name: str, target: Any) -> None:
        """Add `name`; `target` is the object itself or `"module:attribute"`.

        Raises InputError when the name is taken: silently replacing a scorer would falsify results.
        """
        self._read_entry_points()
        if name in self._targets:
            raise InputError(f"{self.kind} {name!r} is registered already; choose another name")
        self._targets[name] = target

    def names(self) -> list[str]:
        self._read_entry_points()
        return sorted(self._targets)

    def load(self, name: str) -> Any:
        """The object behind `name`. Raises InputError (with the nearest names) if there is none."""
        self._read_entry_points()
        if name not in self._targets:
            raise InputError(self._unknown(name))
        target = self._targets[name]
        if isinstance(target, str):
            module, _, attribute = target.partition(":")
            target = getattr(import_module(module), attribute)
        return target

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._targets, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown {self.kind} {name!r}; {hint}known: {', '.join(self.names())}"

    def _read_entry_points(self) -> None:
        if self._entry_points_read:
            return
        self._entry_points_read = True
        plural = "strategies" if self.kind == "strategy" else f"{self.kind}s"
        for point in entry_points(group=f"tide.{plural}"):
            self.add(point.name, point.value)


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise MissingDependencyError naming the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingDependencyError(
            f"{module} is not installed: pip install 'tide-detox[{extra}]'"
        ) from error
