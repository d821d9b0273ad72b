"""Options of a strategy, baseline or scorer: declared in its file, set after its name in specs."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, validate_call
from pydantic.fields import FieldInfo

from tide.core.errors import InputError
from tide.core.validation import one_line, validated
from tide.plugins.specs import format_spec

if TYPE_CHECKING:
    from typing_extensions import Self


_P = ParamSpec("_P")
_T = TypeVar("_T")


class Options(BaseModel):
    """Base of all options: frozen and validated; fields are numbers, booleans, texts or choices.

    An alias is the field's name in specs, for Python keywords (`from`). strength: name of the
    option that `spec` shows even at its default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    strength: ClassVar[str] = ""

    @classmethod
    def by_name(cls) -> dict[str, FieldInfo]:
        """The fields by their names in specs."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    @classmethod
    def of(cls, kind: str, name: str, values: Mapping[str, str]) -> Self:
        """The options of `name`, read from its spec. Raises InputError (one line)."""
        fields = cls.by_name()
        if unknown := values.keys() - fields.keys():
            known = f"known: {', '.join(fields)}" if fields else "it has none"
            raise InputError(f"{kind} {name}: no option {min(unknown)!r}; {known}")
        given = {key: parse_value(fields[key], values[key]) for key in values}
        return validated(cls, given, f"{kind} {name}: ")

    def spec(self, name: str) -> str:
        """The spec of `name`: its strength, and each option that differs from its default."""
        shown, values = {}, dict(self)
        for (written, field), value in zip(self.by_name().items(), values.values(), strict=True):
            default = field.get_default(call_default_factory=True, validated_data=values)
            if written == self.strength or value != default:
                shown[written] = format_value(value)
        return format_spec(name, shown)


def parse_value(field: FieldInfo, text: str) -> Any:
    """The value that `text` means in a spec: None for `none` if the field allows it.

    For a field of several texts, a JSON list gives all of them, and any other text is one of them.
    """
    if get_origin(field.annotation) is tuple and text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return None if text == "none" and NoneType in get_args(field.annotation) else text


def format_value(value: Any) -> str:
    """`value` as a spec writes it; `Options.of` reads it back."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        # Parentheses have a meaning in specs.
        return json.dumps(value).replace("(", "\\u0028").replace(")", "\\u0029")
    if isinstance(value, float):
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value)


def checked(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorator: checks arguments against their declared types, or raises InputError (one line).

    For constructors whose arguments come from the command line as texts: "no" is False for a
    `bool`, and a text that is no truth value is refused. `Annotated[..., Field()]` sets bounds.
    """
    names = list(inspect.signature(function).parameters)
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return validated(*args, **kwargs)
        except ValidationError as error:
            if error.title != getattr(validated, "__qualname__", ""):
                raise  # an error from inside the call
            raise InputError(one_line(error, names)) from None

    return call
