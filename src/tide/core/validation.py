"""What a failed validation says, on one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError


def one_line(error: ValidationError, names: Sequence[str] = ()) -> str:
    """All problems of a validation on one line, each with its field and what was given.

    names: those of positional arguments, which the error knows by number.
    """
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        place = [
            names[part] if isinstance(part, int) and names else part for part in problem["loc"]
        ]
        name = ".".join(map(str, place))
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{name}: {message} (got {_given(problem['input'])})" if name else message)
    return "; ".join(lines)


def problem(error: ValidationError, whole: str = "") -> str:
    """The first field that is wrong, and why; never what it holds. whole: what has no field."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = ".".join(map(str, first["loc"])) or whole
    return f"{name}: {first['msg'].removeprefix('Value error, ')}"


def _given(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # an integer of more than 4,300 digits, or an object of somebody's class
        return f"a {type(value).__name__} that cannot be shown"
