"""Specs name strategies, baselines, methods and scorers with their options, on one line.

    NAME                              tide, pocket
    NAME:KEY=VALUE,KEY=VALUE          backtrack:lag=2,pace=word
    NAME:ARGUMENT                     hf:ID (scorers)
    WRAPPER:SPEC                      cache:pocket, windows:hf:ID
    ENSEMBLE:SPEC,SPEC                max:pocket,cache:lexicon

NAME may also be a class: `module:Class` or `path/file.py:Class`. Commas separate the specs of a
list, and the members of an ensemble. Parentheses enclose a spec or a value that contains commas:
`(cache:max:a,b),c`, `max:(hf:ID#x,y),pocket`, `NAME:key=(a,b)`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tide.core.errors import InputError

# Scorers that wrap other scorers, with their syntax; a comma marks an ensemble.
WRAPPERS = {
    "cache": "cache:SCORER",
    "windows": "windows:SCORER",
    "max": "max:SCORER,SCORER",
    "mean": "mean:SCORER,SCORER",
    "confirm": "confirm:SCORER,SCORER",
    "fallback": "fallback:SCORER,SCORER",
}
_CLASS = re.compile(r"([^:,=()]+):([A-Za-z_]\w*)(?=:|$)")


@dataclass(frozen=True)
class Spec:
    """A parsed spec.

    argument: the text after the colon of a plain name. inner: the specs in a wrapper or ensemble.
    """

    name: str
    argument: str | None = None
    inner: tuple[Spec, ...] = ()

    def __str__(self) -> str:
        # A member is put in parentheses if it has commas, or would absorb the members after it.
        several = len(self.inner) > 1
        members = ",".join(
            f"({spec})" if (several if spec.inner else "," in str(spec)) else str(spec)
            for spec in self.inner
        )
        rest = members or self.argument
        return self.name if rest is None else f"{self.name}:{rest}"


def parse(text: str, option: str = "spec", names: Container[str] = WRAPPERS) -> Spec:
    """Parse one spec. names: the registered names.

    Raises InputError, naming `option`, for a text without a name or with an unmatched parenthesis.
    """
    text = text.strip()
    if (inside := _inside(text)) is not None:
        return parse(inside, option, names)
    name, rest = _head(text, names)
    if not name:
        raise InputError(f"{option}: {text!r} does not begin with a name")
    usage = WRAPPERS.get(name)
    if usage is None or rest is None:
        return Spec(name, rest)
    parts = split_specs(rest, option, names) if "," in usage else [rest]
    inner = tuple(parse(part, option, names) for part in parts)
    return Spec(name, None, inner)


def parse_spec(
    text: str, option: str = "spec", names: Container[str] = ()
) -> tuple[str, dict[str, str]]:
    """Parse a spec `NAME[:key=value,...]`, such as `rad:beta=50`, into its name and options.

    Raises InputError, naming `option`, for a text that is not of this form.
    """
    name, rest = _head(text.strip(), names)
    if not name or set(name) & set("=,()"):
        raise InputError(f"{option}: {text!r} lacks a name; write NAME:key=value,key=value")
    settings: dict[str, str] = {}
    for item in [] if rest is None else _pieces(rest, option):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise InputError(
                f"{option}: {item!r} in {text!r} is not key=value; write NAME:key=value,key=value"
            )
        if key in settings:
            raise InputError(f"{option}: {key!r} is given twice in {text!r}")
        inside = _inside(value)
        settings[key] = value if inside is None else inside
    return name, settings


def format_spec(name: str, settings: Mapping[str, str]) -> str:
    """Format a name and its settings as a spec. `parse_spec` can read the result."""
    items = []
    for key, value in settings.items():
        plain = value and value == value.strip() and "," not in value
        plain = plain and _inside(value) is None
        items.append(f"{key}={value}" if plain else f"{key}=({value})")
    return f"{name}:{','.join(items)}" if items else name


def split_specs(text: str, option: str = "specs", names: Container[str] = WRAPPERS) -> list[str]:
    """Split a comma-separated list of specs; a `key=value` belongs to the spec before it.

    `rad:beta=50,sasa:beta=100,normalize=raw,tide` contains `rad:beta=50`,
    `sasa:beta=100,normalize=raw` and `tide`. names: as in `parse`. Raises InputError,
    naming `option`, for an empty entry, or a `key=value` without a spec before it.
    """
    specs: list[str] = []
    for piece in _pieces(text.strip(), option):
        if not piece:
            raise InputError(f"{option}: an empty entry between commas in {text!r}")
        is_option = "=" in piece.partition(":")[0]
        if specs and (_is_open(specs[-1], names) or (is_option and ":" in specs[-1])):
            specs[-1] += f",{piece}"
        elif is_option:
            raise InputError(
                f"{option}: {piece!r} in {text!r} belongs to no method; write NAME:key=value"
            )
        else:
            specs.append(piece)
    return specs


def _head(text: str, names: Container[str]) -> tuple[str, str | None]:
    """Return the name at the start of `text`, and the text after its colon (or None)."""
    match = _CLASS.match(text)
    # A registered name is never a module, so `hf:ID` is not read as `module:Class`.
    if (
        match
        and match[1] not in names
        and ("." in match[1] or "/" in match[1] or match[2][0].isupper())
    ):
        rest = text[match.end() :]
        return match[0], rest[1:] if rest else None
    name, colon, rest = text.partition(":")
    return name.strip(), rest if colon else None


def _is_open(spec: str, names: Container[str]) -> bool:
    """Return whether `spec` ends inside an ensemble, so that a comma after it adds a member."""
    name, rest = _head(spec, names)
    while rest is not None and name in WRAPPERS:
        if "," in WRAPPERS[name]:
            return True
        name, rest = _head(rest, names)
    return False


def _depths(text: str) -> list[int]:
    return list(accumulate((c == "(") - (c == ")") for c in text))


def _inside(text: str) -> str | None:
    """Return the text inside the parentheses around `text`, or None without parentheses."""
    depths = _depths(text)
    whole = text.startswith("(") and depths[-1] == 0 and all(depths[:-1])
    return text[1:-1] if whole else None


def _pieces(text: str, option: str) -> list[str]:
    """Split `text` at the commas outside parentheses."""
    depths = _depths(text)
    if text and (min(depths) < 0 or depths[-1] != 0):
        raise InputError(f"{option}: an unmatched parenthesis in {text!r}")
    commas = [i for i, c in enumerate(text) if c == "," and depths[i] == 0]
    return [text[a + 1 : b].strip() for a, b in pairwise([-1, *commas, len(text)])]
