"""The public interface: synchronous, asyncio and cluster detoxifiers, and their presets.

`register` adds an engine, a scorer, a strategy or a baseline to the registries.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from tide.baselines import REGISTRY as BASELINES
from tide.core.errors import InputError, matching
from tide.engines import REGISTRY as ENGINES
from tide.plugins.options import checked
from tide.plugins.registry import Registry
from tide.scorers import REGISTRY as SCORERS
from tide.search import REGISTRY as STRATEGIES

Kind = Literal["engine", "scorer", "strategy", "baseline"]
REGISTRIES: Final[dict[str, Registry]] = {
    registry.kind: registry for registry in (ENGINES, SCORERS, STRATEGIES, BASELINES)
}
_NAME_FORM = "letters, digits, '-', '_' and '.', the first a letter"


@checked
def register(
    kind: Kind,
    name: Annotated[str, matching(r"[A-Za-z][\w.-]*", _NAME_FORM)],
    target: Any,
) -> None:
    """Register your own engine, scorer, strategy or baseline under a name.

        tide.register("scorer", "shouting", shouting)
        tide.Detoxifier(scorer="cache:shouting")

    Afterwards, `name` can be used like a built-in name in this process. (An entry point registers a
    name in every process; CONTRIBUTING.md lists the groups of entry points.)

    Args:
        kind: "engine", "scorer", "strategy" or "baseline".
        name: Letters, digits, "-", "_" and "."; it begins with a letter.
        target: The class; for a scorer, also a function from a list of texts to a list of scores;
            or the text "module:Class", imported on first use.

    Raises:
        InputError: The kind is unknown, the name is taken or cannot be written in a spec, or the
            target is neither callable nor a text with a colon.
    """
    if not callable(target) and not (isinstance(target, str) and ":" in target):
        raise InputError(f"target: expected a class, a function or 'module:Class' (got {target!r})")
    REGISTRIES[kind].add(name, target)
