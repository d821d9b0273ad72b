"""`tide methods`: list all names, or show the options of a name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from rich.table import Table
from rich.text import Text

from tide.cli.display import OUTPUT
from tide.core.errors import InputError, first_line, nearest
from tide.detoxifier.presets import PRESETS
from tide.plugins.options import format_value
from tide.plugins.registry import Registry

_WIDTH = 80
# A name, its description, and its options with their defaults and descriptions.
_Row = tuple[str, str, list[tuple[str, str]]]
_OF_PRESETS = {
    "backtrack": "A cheap repair on any engine with a threshold of 0.1.",
    "relative": "The default settings, scaled to the prompt's embeddings, for any model.",
}
# What `tide methods NAME` says of each kind of name.
_KINDS = {
    "strategies": "strategy, which also has the settings of `tide run --help`",
    "presets": "preset",
    "baselines": "baseline",
    "scorers": "scorer",
    "engines": "engine",
}


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this name with its options.")] = None,
) -> None:
    """List strategies, presets, baselines, scorers and engines; with NAME, show its options.

    The list includes plugins of other packages.
    """
    from tide.baselines import REGISTRY as BASELINES  # noqa: PLC0415
    from tide.engines import REGISTRY as ENGINES  # noqa: PLC0415
    from tide.scorers import REGISTRY as SCORERS  # noqa: PLC0415
    from tide.scorers import WRAPPERS  # noqa: PLC0415
    from tide.search import REGISTRY as STRATEGIES  # noqa: PLC0415

    kinds: dict[str, Callable[[str | None], Iterator[_Row]]] = {
        "strategies": lambda name: _described(STRATEGIES, name),
        "presets": _presets,
        "baselines": lambda name: _described(BASELINES, name),
        "scorers": lambda name: _described(SCORERS, name, WRAPPERS),
        "engines": lambda name: _described(ENGINES, name),
    }
    if name is None:
        for kind, rows in kinds.items():
            _list(kind, rows(None))
        OUTPUT.print("`tide methods NAME` shows its options.")
        return
    wanted = name.partition(":")[0]
    matches = [(kind, row) for kind, rows in kinds.items() for row in rows(wanted)]
    if not matches:
        known = {row[0].partition(":")[0] for rows in kinds.values() for row in rows(None)}
        hint = nearest(wanted, known)
        raise InputError(f"unknown name {wanted!r}; {hint}`tide methods` lists all")
    for kind, row in matches:
        _show(kind, row)


def _described(
    registry: Registry, wanted: str | None, written: Mapping[str, str] = MappingProxyType({})
) -> Iterator[_Row]:
    """Yield a row per name, or only for `wanted`. written: the syntax of names with arguments."""
    for name in registry.names():
        if wanted not in (None, name):
            continue
        usage = written.get(name, name)
        try:
            target = registry.load(name)
            if usage == name and registry.kind == "scorer":
                usage += _argument(target)
            first = inspect.cleandoc(target.__doc__ or "").partition("\n\n")[0]
            yield usage, " ".join(first.split()), list(_options(target, registry.kind))
        except Exception as error:  # plugins may fail in any way
            yield usage, f"cannot be used: {first_line(error)}", []


def _argument(target: Any) -> str:
    """Return the argument that a scorer's spec must have, such as `:PATH`; "" if it has none."""
    first = next(iter(inspect.signature(target).parameters.values()), None)
    if first is None or first.default is not first.empty or hasattr(target, "options_class"):
        return ""
    return f":{first.name.upper()}"


def _options(target: Any, kind: str) -> Iterator[tuple[str, str]]:
    if options := getattr(target, "options_class", None):
        defaults: dict[str, Any] = {}  # a default may be computed from earlier defaults
        for name, field in options.model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data=defaults)
            defaults[name] = default
            literals = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choices = f"({' or '.join(literals)})" if literals else ""
            says = " ".join(part for part in (field.description, choices) if part)
            yield name if field.is_required() else f"{name}={format_value(default)}", says
    elif kind == "engine":
        for parameter in list(inspect.signature(target).parameters.values())[1:]:
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                yield f"{parameter.name}={format_value(parameter.default)}", ""


def _presets(wanted: str | None) -> Iterator[_Row]:
    for name, values in PRESETS.items():
        if wanted in (None, name):
            texts = {k: f"{v:g}" if isinstance(v, float) else v for k, v in values.items()}
            options = [(f"{key}={value}", "") for key, value in texts.items()]
            yield name, _OF_PRESETS.get(name, "Settings published for this model."), options


def _list(kind: str, rows: Iterable[_Row]) -> None:
    """Print each name with the first sentence of its description."""
    table = _table(kind)
    for name, description, _ in rows:
        first = re.split(r"(?<=\.) ", description, maxsplit=1)[0].rstrip(".")
        table.add_row(Text(name, style="bold"), Text(first))
    OUTPUT.print(table)
    OUTPUT.print()


def _show(kind: str, row: _Row) -> None:
    name, description, options = row
    OUTPUT.print(Text.assemble((name, "bold"), f" ({_KINDS[kind]})"))
    OUTPUT.print(Text(description))
    if options:
        table = _table("")
        for option, says in options:
            table.add_row(Text(option), Text(says))
        OUTPUT.print(table)
    OUTPUT.print()


def _table(title: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, show_header=False)
    table.width = _WIDTH
    table.add_column(max_width=30, overflow="fold")
    table.add_column(overflow="fold")
    return table
