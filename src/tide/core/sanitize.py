"""Cleans untrusted text in messages and logs; lists all strings of untrusted JSON.

Messages quote servers, model folders and input files, which may contain anything: a key that a
server echoes, codes that rewrite a terminal, a page of text. `sanitized` cleans such text. The text
of every TideError and every line of a logger made by `logger` is cleaned by `sanitized`.

Text can be hidden in keys of JSON, and in JSON inside of JSON, where a letter may be written as an
escape. `strings` lists every string and key, both as written and with all escapes resolved.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json

# A message has its cause at the beginning and the fix at the end, so the middle is cut.
_HEAD, _TAIL = 700, 300
_SHORTEST = 4  # shorter keys are not hidden, because ordinary words contain them
# A service may quote a key without its prefix (`sk-`, `sk-proj-`). So the rest after each separator
# in the first 16 characters is hidden as well, if this rest has at least 8 characters.
_PREFIX, _LEAST_REST = 16, 8
_keys: set[str] = set()

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"?', re.DOTALL)
_WHITE = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b"}
# JSON inside of JSON inside of JSON is accepted; deeper nesting is meant to hide text.
_MOST_ESCAPED = 4


def hide(key: str) -> None:
    """From now on, replace `key` by stars in all sanitized text, ignoring case."""
    if len(key) < _SHORTEST:
        return
    ends = [separator.end() for separator in re.finditer("[-_.:]", key[:_PREFIX])]
    for part in (key, *(key[end:] for end in ends if len(key) - end >= _LEAST_REST)):
        _keys.update((part, quote(part, safe=""), json.dumps(part)[1:-1]))
    _hidden.cache_clear()


@cache
def _hidden() -> re.Pattern[str]:
    """Compile a pattern that matches every key, the longest key first."""
    keys = sorted(_keys, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, keys)) or r"(?!)", re.IGNORECASE)


def sanitized(text: str) -> str:
    """Put `text` on one line of at most 1,000 characters; replace keys and control characters."""
    text = _hidden().sub("***", text)
    if len(text) > _HEAD + _TAIL:
        text = f"{text[: _HEAD - 3]}...{text[-_TAIL:]}"
    return visible(" ".join(text.splitlines()))


def without_keys(content: bytes) -> bytes:
    """Replace keys in bytes; all other bytes stay as they are."""
    return _hidden().sub("***", content.decode("latin-1")).encode("latin-1")


def visible(text: str, unescaped: str = "") -> str:
    """Write control characters, format characters and lone surrogates of `text` as escapes.

    The result cannot move the cursor, change colours, or display in another order than stored.
    unescaped: characters that are not escaped, such as a newline.
    """
    if text.isascii() and text.isprintable():
        return text
    characters = []
    for c in text:
        is_escaped = c not in unescaped and _is_control(c)
        characters.append(c.encode("unicode_escape").decode() if is_escaped else c)
    return "".join(characters)


def half_character(text: str) -> int | None:
    """Return the index of the first lone surrogate, which UTF-8 cannot encode, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _is_control(character: str) -> bool:
    # Zero-width joiners and non-joiners are harmless, and emoji and several scripts need them.
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and (
        character not in "\u200c\u200d"
    )


def logger(name: str) -> logging.Logger:
    """Return the logger `name`; `sanitized` cleans its lines before any handler gets them."""
    log = logging.getLogger(name)
    log.addFilter(_clean)
    return log


def _clean(record: logging.LogRecord) -> bool:
    record.msg, record.args = sanitized(record.getMessage()), ()
    return True


class Unread(Exception):
    """A value cannot be read, for the reason in the message."""


def strings(
    value: Any, check: Callable[[Mapping[str, Any], str], None] | None = None
) -> Iterator[str]:
    """Yield the `readings` of every string and key of a JSON value. Raises Unread.

    check: called with each object and the object's path; may raise an error.
    """
    left = [(value, "")]
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
