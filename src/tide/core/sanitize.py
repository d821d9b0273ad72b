"""Removes keys, control characters and long lines from untrusted text in messages and logs.

Messages quote servers, model folders and input files, which may contain anything: a key that a
server echoes, codes that rewrite a terminal, a page of text. `sanitized` cleans such text. The text
of every TideError and every line of a logger made by `logger` is cleaned by `sanitized`.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from functools import cache
from urllib.parse import quote

# A message has its cause at the beginning and the fix at the end, so the middle is cut.
_HEAD, _TAIL = 700, 300
_SHORTEST = 4  # shorter keys are not hidden, because ordinary words contain them
# A service may quote a key without its prefix (`sk-`, `sk-proj-`). So the rest after each separator
# in the first 16 characters is hidden as well, if this rest has at least 8 characters.
_PREFIX, _LEAST_REST = 16, 8
_keys: set[str] = set()


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


def clean_logs(library: str) -> None:
    """Sanitise all output of the handlers of the logger `library`, which may quote any text."""
    for handler in logging.getLogger(library).handlers:
        handler.addFilter(_clean)
