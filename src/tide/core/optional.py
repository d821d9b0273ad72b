"""Optional dependencies, imported when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from tide.core.errors import MissingDependencyError

# The packages of the extra `local`, by their import names. A gateway does not need these packages,
# because its model runs on a server.
LOCAL = ("jinja2", "pandas", "scipy", "sklearn", "tabulate", "torch", "transformers")


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise MissingDependencyError naming the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise _missing(error.name, extra) from error


@contextmanager
def local_imports() -> Iterator[None]:
    """Raise MissingDependencyError if code in the block needs a missing package of `local`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in LOCAL:
            raise
        raise _missing(package, "local") from error


def _missing(module: str, extra: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{module} is not installed; in a checkout of TIDE: pip install -e '.[{extra}]'"
    )
