"""A lazy registry. It maps names to `"module:attribute"`, which is imported on first use.

Third parties add an engine, scorer, strategy or baseline without changing the package, by an entry
point in the group `tide.engines`, `tide.scorers`, `tide.strategies` or `tide.baselines`.
Unregistered classes are named by their place: `my_package.scorers:Mine` or `path/file.py:Mine`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from functools import cache, cached_property
from hashlib import blake2b
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from tide.core.errors import InputError, MissingDependencyError, first_line, local_imports, unknown

_LOCK = threading.RLock()  # a file may load another one
_installed = cache(entry_points)  # as it opens the metadata of every package


class Registry:
    """Maps names of one kind (such as scorers) to the places that they are imported from."""

    def __init__(self, kind: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self._builtin = builtin

    def names(self) -> list[str]:
        """Return all names, sorted, without importing anything."""
        return sorted(self._targets)

    def load(self, name: str) -> Any:
        """Import the object `name`, which may also be `module:attribute` or `file.py:attribute`.

        Raises InputError if the name is unknown (with the nearest names) or the import fails, and
        MissingDependencyError if the object needs a package that is not installed.
        """
        if name not in self._targets:
            if name.partition(":")[0] in self._targets or ":" not in name:
                if name.endswith(".py"):
                    fix = f"name the class or function as well, as in {name}:NAME"
                    raise InputError(f"{self.kind} {name!r}: {fix}")
                raise InputError(unknown(name, self.names(), self.kind))
            return _imported(f"{self.kind} {name!r}", name)
        target = self._targets[name]
        return _imported(f"{self.kind} {name!r}", target) if isinstance(target, str) else target

    @cached_property
    def _targets(self) -> dict[str, Any]:
        """The places by name: built-in, and of installed packages. (Tests put objects here.)"""
        plural = "strategies" if self.kind == "strategy" else f"{self.kind}s"
        targets: dict[str, Any] = dict(self._builtin)
        for point in _installed().select(group=f"tide.{plural}"):
            if targets.setdefault(point.name, point.value) != point.value:
                raise InputError(
                    f"{self.kind} {point.name!r}: two installed packages use this name, or one "
                    "uses the name of a built-in; uninstall one"
                )
        return targets


def _imported(origin: str, target: str) -> Any:
    """Import `module:attribute` or `path/file.py:attribute`.

    origin: beginning of the error's message. Raises InputError or MissingDependencyError.
    """
    source, colon, attribute = target.rpartition(":")
    if not colon:
        raise InputError(f"{origin}: its entry point {target!r} must be MODULE:CLASS")
    try:
        with local_imports():
            module = _run_file(Path(source)) if source.endswith(".py") else import_module(source)
    except MissingDependencyError:
        raise
    except (Exception, SystemExit) as error:  # third-party code may fail in any way
        problem = f"{source} cannot be imported: {first_line(error)}"
        raise InputError(f"{origin}: {problem}") from error
    if not callable(value := getattr(module, attribute, None)):
        raise InputError(f"{origin}: {source} has no class or function {attribute!r}")
    return value


def _run_file(path: Path) -> ModuleType:
    """Import a file once, and again after an edit.

    The module is kept in `sys.modules`, where dataclasses look it up.
    """
    content = str(path.resolve()).encode() + path.read_bytes()
    name = f"tide_file_{blake2b(content, digest_size=8).hexdigest()}"
    with _LOCK:  # another thread may be running the file
        if name not in sys.modules:
            spec = spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = module = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]
