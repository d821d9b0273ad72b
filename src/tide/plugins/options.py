"""Options of strategies, baselines and scorers, which specs set after the name."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, ParamSpec, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, validate_call
from pydantic.fields import FieldInfo

from tide.core.errors import InputError, one_line, validated
from tide.plugins.specs import format_spec

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Options(BaseModel):
    """Base of all options, frozen and validated. Fields are numbers, booleans, texts or choices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, kind: str, name: str, values: Mapping[str, str]) -> Self:
        """Validate the options in a spec of `name`. Raises InputError (one line)."""
        fields = cls.model_fields
        if unknown := values.keys() - fields.keys():
            known = f"known: {', '.join(fields)}" if fields else "it has none"
            raise InputError(f"{kind} {name}: no option {min(unknown)!r}; {known}")
        parsed = {key: parse_value(fields[key], values[key]) for key in values}
        return validated(cls, parsed, f"{kind} {name}: ")

    def spec(self, name: str, strength: str = "") -> str:
        """Return the spec of `name`, with `strength` and all options that are not the default."""
        options, values = {}, dict(self)
        for option, field in type(self).model_fields.items():
            default = field.get_default(call_default_factory=True, validated_data=values)
            if option == strength or values[option] != default:
                options[option] = format_value(values[option])
        return format_spec(name, options)


def parse_value(field: FieldInfo, text: str) -> Any:
    """Parse an option's value in a spec. `none` is None if the field allows None.

    For a field of several texts, a JSON list gives all texts, and any other value is one text.
    """
    if get_origin(field.annotation) is tuple and text.startswith("["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return None if text == "none" and NoneType in get_args(field.annotation) else text


def format_value(value: Any) -> str:
    """Format an option's value for a spec. `Options.of` can read the result."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | dict):
        # Escaped, as parentheses have a meaning in specs.
        return json.dumps(value).replace("(", "\\u0028").replace(")", "\\u0029")
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


def checked(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function to validate its arguments by their types, or raise InputError (one line).

    Constructors get arguments from the command line as texts. For a `bool`, "no" is False, and a
    text that is not a truth value is refused. `Annotated[..., Field()]` sets bounds.
    """
    names = list(inspect.signature(function).parameters)
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            if error.title != getattr(validated, "__qualname__", ""):
                raise  # the function itself raised the error
            raise InputError(one_line(error, names)) from None

    return call
