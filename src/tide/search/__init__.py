"""Which embeddings to try next: tensors and scores only, no model and no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lazy_loader
from pydantic.fields import FieldInfo

from tide.errors import InputError
from tide.options import Options, read
from tide.registry import Registry
from tide.specs import format_spec, parse_spec

if TYPE_CHECKING:
    from tide.config import Settings
    from tide.search.base import (
        Candidate,
        LikelihoodRequest,
        Point,
        Problem,
        SearchStrategy,
        Steps,
        Strategy,
    )

REGISTRY = Registry(
    "strategy",
    {
        "tide": "tide.search.tide:TideStrategy",
        "accept-any": "tide.search.tide:AcceptAnyStrategy",
        "shuffled": "tide.search.tide:ShuffledStrategy",
        "random-walk": "tide.search.tide:RandomWalkStrategy",
        "ladder": "tide.search.direct:LadderStrategy",
        "resample": "tide.search.direct:ResampleStrategy",
    },
)


@dataclass(frozen=True)
class LoadedStrategy:
    """A strategy with its options. name: normalised spec, for records."""

    name: str
    strategy: Any
    options: Options

    def create(self, problem: Problem, settings: Settings) -> SearchStrategy:
        """A search of `problem`. Raises InputError for a prompt that it cannot start from."""
        search: SearchStrategy = self.strategy(problem, settings, self.options)
        return search


def load_strategy(spec: str | type) -> LoadedStrategy:
    """The strategy that `spec` (`NAME[:key=value,...]`) describes, or a class with its defaults.

    A class has `options_class` and is created with the problem, the settings and its options.
    Raises InputError for a name or an option that there is not.
    """
    if isinstance(spec, str):
        name, given = parse_spec(spec, "strategy")
        create = REGISTRY.load(name)
    elif isinstance(spec, type):
        name, given, create = f"{spec.__module__}:{spec.__qualname__}", {}, spec
    else:
        raise InputError(f"strategy: expected NAME or NAME:key=value,... (got {spec!r})")
    if not hasattr(create, "options_class"):
        raise InputError(f"strategy {name}: has no options_class; derive it from tide.Strategy")
    options: Options = create.options_class.of("strategy", name, given)
    return LoadedStrategy(options.spec(name), create, options)


def split_strategy(
    spec: str, settings: Mapping[str, FieldInfo]
) -> tuple[str, dict[str, str | None]]:
    """`spec` without the values of `settings` that stand in it, and these.

    An option of the strategy itself wins over a setting of the same name.
    """
    name, given = parse_spec(spec, "strategy")
    own = getattr(REGISTRY.load(name), "options_class", Options).by_name()
    common = given.keys() & settings.keys() - own.keys() - {"strategy"}
    rest = {key: value for key, value in given.items() if key not in common}
    return format_spec(name, rest), {key: read(settings[key], given[key]) for key in common}


__getattr__, _, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "base": [
            "Candidate",
            "LikelihoodRequest",
            "Point",
            "Problem",
            "SearchStrategy",
            "Steps",
            "Strategy",
        ]
    },
)

__all__ = [
    "REGISTRY",
    "Candidate",
    "LikelihoodRequest",
    "LoadedStrategy",
    "Point",
    "Problem",
    "SearchStrategy",
    "Steps",
    "Strategy",
    "load_strategy",
    "split_strategy",
]
