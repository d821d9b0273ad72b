"""Settings from several layers: presets, protocols, files and keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tide.core.errors import InputError
from tide.core.settings import SCALES, Settings
from tide.core.validation import one_line
from tide.plugins.options import Options, parse_value
from tide.plugins.specs import format_spec, parse_spec
from tide.search import REGISTRY, load_strategy


def resolve_settings(*layers: Mapping[str, Any]) -> Settings:
    """Settings from `layers`, the later ones winning. Raises InputError (one line) if invalid.

    A layer that sets a scale, absolute or relative, replaces both of the layers before it, so that
    an explicit `mu` overrides the `mu_relative` of a preset. The spec of a strategy may hold any
    setting (`tide:num_samples=16,estimator=rank`), which counts as part of its layer; the
    strategy's own options stay in `strategy`.
    """
    fields = Settings.model_fields
    values: dict[str, Any] = {"strategy": "tide"}
    for given in layers:
        layer = dict(given)
        if isinstance(layer.get("strategy"), str):
            name, found = parse_spec(layer["strategy"], "strategy")
            own = getattr(REGISTRY.load(name), "options_class", Options).by_name()
            common = found.keys() & fields.keys() - own.keys() - {"strategy"}
            if twice := common & layer.keys():
                raise InputError(f"{min(twice)}: is given twice, once in the strategy's spec")
            layer |= {key: parse_value(fields[key], found.pop(key)) for key in common}
            layer["strategy"] = format_spec(name, found)
        for scale in SCALES:
            if any(layer.get(name) is not None for name in scale):
                values.update(dict.fromkeys(scale))
        values.update(layer)
    strategy = load_strategy(values["strategy"])
    for name in values.keys() & strategy.options.by_name().keys() - fields.keys():
        written = f"{strategy.name.partition(':')[0]}:{name}={values[name]}"
        raise InputError(f"{name}: is an option of the strategy; write strategy={written!r}")
    try:
        settings = Settings(**{**values, "strategy": strategy.name})
    except ValidationError as error:
        raise InputError(one_line(error, known=fields)) from None
    strategy.check(settings)
    return settings
