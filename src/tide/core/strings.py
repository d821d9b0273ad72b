"""Lists every string and key of a JSON value, both as written and with all escapes resolved.

Text can be hidden in keys, and in JSON inside of JSON, where a letter may be written as an escape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from tide.core.sanitize import half_character

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"?', re.DOTALL)
_WHITE = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}
# JSON inside of JSON inside of JSON is accepted; deeper nesting is meant to hide text.
_MOST_ESCAPED = 4


class Unread(Exception):
    """A value cannot be read, for the reason in the message."""


def strings(
    value: Any, check: Callable[[Mapping[str, Any], str], None] | None = None, where: str = ""
) -> Iterator[str]:
    """Yield the `readings` of every string and key of a JSON value. Raises Unread.

    check: called with each object and the object's path; may raise an error.
    """
    left = [(value, where)]
    while left:
        value, where = left.pop()
        if isinstance(value, str):
            yield from readings(value, where)
        elif isinstance(value, list):
            left += [(member, where) for member in reversed(value)]
        elif isinstance(value, dict):
            if check is not None:
                check(value, where)
            for key, member in reversed(value.items()):
                left += [(member, f"{where}.{key}" if where else key), (key, where)]


def strings_of_json(text: str) -> list[str]:
    """List the `readings` of every string and key in a JSON text, repeated keys included.

    Raises Unread, also for a text that is not JSON.
    """
    try:
        # By default `json` keeps only the last value of a repeated key.
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: [list(pair) for pair in pairs],
            parse_constant=_refuse,  # NaN and Infinity, which JSON does not have
        )
        return list(strings(value))
    except (ValueError, RecursionError):
        raise Unread("not JSON") from None


def strings_of_cut_json(text: str) -> list[str]:
    """Like `strings_of_json`, for the beginning of a JSON text. Raises Unread for any other."""
    try:
        from_json(text)
    except ValueError as error:
        if not str(error).startswith("EOF"):
            raise Unread("not the beginning of JSON") from None
    return [reading for string in _STRING.findall(text) for reading in readings(string)]


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def readings(text: str, where: str = "") -> Iterator[str]:
    """Yield `text`, then `text` with its escapes resolved level by level. Raises Unread."""
    if half_character(text) is not None:
        raise Unread(f"{where}: invalid Unicode (a lone surrogate)")
    for _ in range(_MOST_ESCAPED):
        yield text
        text, escaped = _unescaped(text), text
        if text == escaped:
            return
    raise Unread(f"{where}: escapes are nested more than {_MOST_ESCAPED - 1} deep")


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2]
        return chr(int(code, 16)) if code else _WHITE.get(escape[3], escape[3])

    # Two escapes may form one character (a surrogate pair).
    pairs = _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass")
    return pairs.decode("utf-16", "replace")
