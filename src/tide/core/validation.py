"""One-line messages for values that fail a validation."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tide.core.errors import InputError

_Model = TypeVar("_Model", bound=BaseModel)
# Pydantic's error of a default that depends on other fields, if one of these is wrong.
_FOLLOWING = "default_factory_not_called"


def unknown(name: str, known: Iterable[str], kind: str = "") -> str:
    """Return a message for a name that is not among `known`, with the nearest known name."""
    problem = f"unknown {kind} {name!r}" if kind else f"unknown {name!r}"
    names = list(known)
    return f"{problem}; {nearest(name, names)}known: {', '.join(names)}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the hint `did you mean 'X'? `, or "" if no name in `known` is similar."""
    meant = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), list(meant), n=1, cutoff=0.5)
    return f"did you mean {meant[near[0]]!r}? " if near else ""


def validated(model: type[_Model], values: Mapping[str, Any], where: str = "") -> _Model:
    """Create a `model` from `values`. Raises InputError with `where` and all wrong fields."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}{one_line(error)}") from None


def one_line(error: ValidationError, names: Sequence[str] = (), known: Iterable[str] = ()) -> str:
    """Return all problems of a validation on one line, each with its field and its value.

    names: names of positional arguments, which the error only numbers. known: the valid fields, for
    a hint about an unknown field.
    """
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        if problem["type"] == _FOLLOWING:
            continue
        place = [
            names[part] if isinstance(part, int) and names else part for part in problem["loc"]
        ]
        name = ".".join(map(str, place))
        message = _message(problem, known)
        lines.append(
            f"{name}: {message} (got {_shown_value(problem['input'])})" if name else message
        )
    return "; ".join(lines)


def problem(error: ValidationError, whole: str = "") -> str:
    """Return the first wrong field and the reason, without the value. whole: name of the input."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    first = next(problem for problem in errors if problem["type"] != _FOLLOWING)
    name = ".".join(map(str, first["loc"])) or whole
    message = _message(first)
    return f"{name}: {message}" if name else message


def _message(problem: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown; {nearest(str(problem['loc'][-1]), known)}".rstrip("; ")
    return str(problem["msg"]).removeprefix("Value error, ")


def _shown_value(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # an integer of more than 4,300 digits, or a third party's `__repr__`
        return f"a {type(value).__name__} that cannot be shown"
