"""`NAME:key=value,key=value`: how a method with its settings is written on one line."""

from __future__ import annotations

from tide.errors import InputError


def parse_spec(text: str, option: str = "spec") -> tuple[str, dict[str, str]]:
    """Name and settings of `NAME[:key=value,...]`, e.g. `rad:beta=50,normalize=minmax`.

    Raises InputError, naming `option`, for a text that is not of this form.
    """
    name, colon, rest = text.strip().partition(":")
    name = name.strip()
    if not name or "=" in name or "," in name:
        raise InputError(f"{option}: {text!r} begins with no name; write NAME:key=value,key=value")
    settings: dict[str, str] = {}
    for item in rest.split(",") if colon else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not (key and equals and value):
            raise InputError(
                f"{option}: {item.strip()!r} in {text!r} is not key=value; "
                "write NAME:key=value,key=value"
            )
        if key in settings:
            raise InputError(f"{option}: {key!r} is given twice in {text!r}")
        settings[key] = value
    return name, settings


def split_specs(text: str, option: str = "specs") -> list[str]:
    """The specs of a comma-separated list; a `key=value` belongs to the spec before it.

    `rad:beta=50,sasa:beta=100,normalize=raw,tide` holds `rad:beta=50`,
    `sasa:beta=100,normalize=raw` and `tide`. Raises InputError, naming `option`, for a list that
    holds nothing or a piece that belongs to no spec.
    """
    specs: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if not piece:
            raise InputError(f"{option}: an empty place between commas in {text!r}")
        before_colon = piece.partition(":")[0]
        if "=" not in before_colon:
            specs.append(piece)
        elif specs and ":" in specs[-1]:
            specs[-1] += f",{piece}"
        else:
            raise InputError(
                f"{option}: {piece!r} in {text!r} belongs to no method; write NAME:key=value"
            )
    return specs
