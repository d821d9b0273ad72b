"""Search strategies choose the embeddings to try next. They see tensors and scores, but no text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tide.core.errors import (
    InputError,
    MissingDependencyError,
    StrategyError,
    guarded,
    nearest,
    one_line,
)
from tide.core.settings import DEFAULT_STRATEGY, SCALES, Settings
from tide.plugins.options import Options, parse_value
from tide.plugins.registry import Registry
from tide.plugins.specs import format_spec, parse_spec

if TYPE_CHECKING:
    from tide.search.base import Problem, Strategy

REGISTRY = Registry(
    "strategy",
    {
        "tide": "tide.search.tide:TideStrategy",
        "shuffled": "tide.search.tide:ShuffledStrategy",
        "random-walk": "tide.search.tide:RandomWalkStrategy",
        "resample": "tide.search.tide:ResampleStrategy",
        "backtrack": "tide.search.backtrack:Backtrack",
    },
)


@dataclass(frozen=True)
class LoadedStrategy:
    """A strategy with its options. name: normalised spec, for records.

    moves: whether it moves the prompt's embeddings, which not every engine has. rewinds: whether it
    repairs the answer while it is written, instead of searching.
    """

    name: str
    strategy: Any
    options: Options
    moves: bool
    rewinds: bool

    def create(self, problem: Problem, settings: Settings) -> Strategy:
        """Create a search of `problem`. Raises InputError if it cannot start from the prompt."""
        with guarded(StrategyError, f"strategy {self.name} failed"):
            search: Strategy = self.strategy(problem, settings, self.options)
        return search


def _class_of(name: str) -> Any:
    """Import the class of a strategy. Raises the errors of `Registry.load`."""
    try:
        return REGISTRY.load(name)
    except MissingDependencyError as error:
        needs = "a search needs torch and, unless it is resample, an engine with prompt embeddings"
        engines = "(transformers or vllm); backtrack needs neither"
        raise MissingDependencyError(f"strategy {name}: {needs} {engines}; {error}") from None


def load_strategy(spec: str | type | LoadedStrategy) -> LoadedStrategy:
    """Load a search strategy.

    Args:
        spec: `NAME[:key=value,...]`, or a class, which gets its default options. A loaded strategy
            stays as it is.

    Raises:
        InputError: The name or an option is unknown.
    """
    if isinstance(spec, LoadedStrategy):
        return spec
    if isinstance(spec, str):
        name, options_given = parse_spec(spec, "strategy")
        create = _class_of(name)
    elif isinstance(spec, type):
        name, options_given, create = f"{spec.__module__}:{spec.__qualname__}", {}, spec
    else:
        raise InputError(f"strategy: expected NAME or NAME:key=value,... (got {spec!r})")
    if not hasattr(create, "options_class"):
        raise InputError(f"strategy {name} has no options_class; derive it from tide.Strategy")
    options: Options = create.options_class.of("strategy", name, options_given)
    moves, rewinds = getattr(create, "moves", True), getattr(create, "rewinds", False)
    return LoadedStrategy(options.spec(name), create, options, moves, rewinds)


def resolve_settings(*layers: Mapping[str, Any]) -> Settings:
    """Merge `layers` like `resolve`, but return only the settings."""
    return resolve(*layers)[0]


def resolve(*layers: Mapping[str, Any]) -> tuple[Settings, LoadedStrategy]:
    """Merge `layers` into settings; later layers win. Return the settings and their strategy.

    Raises InputError (one line) if a setting is invalid, or does not work with the strategy.

    A layer that sets the absolute or the relative form of a scale discards both forms set by
    earlier layers, so that an explicit `mu` overrides the `mu_relative` of a preset. The spec of a
    strategy may contain settings (`tide:num_samples=16,cosine_threshold=0.4`). They count as set
    in the layer that has the spec; the strategy's own options stay in `strategy`.
    """
    fields = Settings.model_fields
    values: dict[str, Any] = {"strategy": DEFAULT_STRATEGY}
    for source in layers:
        layer = dict(source)
        if isinstance(layer.get("strategy"), str):
            name, spec_options = parse_spec(layer["strategy"], "strategy")
            own_options = getattr(_class_of(name), "options_class", Options).model_fields
            common = spec_options.keys() & fields.keys() - own_options.keys() - {"strategy"}
            if wrong := spec_options.keys() - fields.keys() - own_options.keys():
                hint = nearest(min(wrong), [*own_options, *fields])
                known = ", ".join([*own_options, "the settings of tide run --help"])
                raise InputError(f"strategy {name}: no option {min(wrong)!r}; {hint}known: {known}")
            if twice := common & layer.keys():
                raise InputError(f"{min(twice)}: is given twice, once in the strategy's spec")
            layer |= {key: parse_value(fields[key], spec_options.pop(key)) for key in common}
            layer["strategy"] = format_spec(name, spec_options)
        for scale in SCALES:
            if any(layer.get(name) is not None for name in scale):
                values.update(dict.fromkeys(scale))
        values.update(layer)
    strategy = load_strategy(values["strategy"])
    for name in values.keys() & type(strategy.options).model_fields.keys() - fields.keys():
        written = f"{strategy.name.partition(':')[0]}:{name}={values[name]}"
        raise InputError(f"{name}: is an option of the strategy; write strategy={written!r}")
    try:
        settings = Settings(**{**values, "strategy": strategy.name})
    except ValidationError as error:
        raise InputError(one_line(error, known=fields)) from None
    return settings, strategy
