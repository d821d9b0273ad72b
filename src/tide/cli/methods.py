"""`tide methods`: what there is to choose from, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from rich.table import Table
from rich.text import Text

from tide.cli.display import OUTPUT
from tide.core.errors import first_line
from tide.detoxifier.presets import PRESETS, PUBLISHED
from tide.plugins.options import write
from tide.plugins.registry import Registry

_WIDTH = 80
# A name, what it is, and its options with their defaults and what each does.
_Row = tuple[str, str, list[tuple[str, str]]]


def methods() -> None:
    """List strategies, presets, baselines, scorers and engines with their options and defaults.

    Options are written behind a name: ladder:from=0.6,growth=1.3. (Those of an engine:
    --engine-option NAME=VALUE.) What other packages add is in the list.
    """
    from tide.baselines import REGISTRY as BASELINES  # noqa: PLC0415
    from tide.engines import REGISTRY as ENGINES  # noqa: PLC0415
    from tide.scorers import AROUND  # noqa: PLC0415
    from tide.scorers import REGISTRY as SCORERS  # noqa: PLC0415
    from tide.search import REGISTRY as STRATEGIES  # noqa: PLC0415

    _show("strategies, beside the settings of tide run --help", _described(STRATEGIES))
    _show("presets", _presets())
    _show("baselines", _described(BASELINES))
    _show("scorers", ((AROUND.get(row[0], row[0]), *row[1:]) for row in _described(SCORERS)))
    _show("engines", _described(ENGINES))


def _described(registry: Registry) -> Iterator[_Row]:
    for name in registry.names():
        try:
            found = registry.load(name)
            first = inspect.cleandoc(found.__doc__ or "").partition("\n\n")[0]
            yield name, " ".join(first.split()), list(_options(found, registry.kind))
        except Exception as error:  # a package of somebody else's may be broken in any way
            yield name, f"cannot be used: {first_line(error)}", []


def _options(found: Any, kind: str) -> Iterator[tuple[str, str]]:
    if options := getattr(found, "options_class", None):
        defaults: dict[str, Any] = {}  # of which those that come later may be made
        for name, field in options.by_name().items():
            default = field.get_default(call_default_factory=True, validated_data=defaults)
            defaults[name] = default
            literals = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choices = f"({' or '.join(literals)})" if literals else ""
            says = " ".join(part for part in (field.description, choices) if part)
            yield name if field.is_required() else f"{name}={write(default)}", says
    elif kind == "engine":
        for parameter in list(inspect.signature(found).parameters.values())[1:]:
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                yield f"{parameter.name}={write(parameter.default)}", ""


def _presets() -> Iterator[_Row]:
    for name, values in PRESETS.items():
        shown = {k: f"{v:g}" if isinstance(v, float) else v for k, v in values.items()}
        written = ", ".join(f"{key}={value}" for key, value in shown.items())
        yield name, f"{written or 'the defaults'}{' (published)' if name in PUBLISHED else ''}", []


def _show(title: str, rows: Iterator[_Row]) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False, width=_WIDTH)
    table.add_column(max_width=30, overflow="fold")
    table.add_column()
    for name, description, options in rows:
        table.add_row(Text(name, style="bold"), Text(description))
        for option, says in options:
            table.add_row(Text(f"  {option}"), Text(says, style="dim"))
    OUTPUT.print(table)
    OUTPUT.print()
