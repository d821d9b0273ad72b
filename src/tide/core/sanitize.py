"""Sanitises untrusted text for messages and logs: no keys, no control characters, no long lines.

Messages quote servers, model folders and input files, which may hold anything: a key that a server
echoes, codes that rewrite a terminal, a page of text. Such text passes `shown`, as do the text of
every TideError and every line of a logger made by `logger`.
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
_SHORTEST = 4  # hiding a shorter key would hide half of a message
# A service may name a key without its prefix (`sk-`, `sk-proj-`): the rest after a separator in its
# first characters is hidden as well, if it is more than a word.
_PREFIX, _LEAST_REST = 16, 8
_keys: set[str] = set()


def hide(key: str) -> None:
    """From now on replace `key` by stars in all shown text, ignoring case."""
    if len(key) < _SHORTEST:
        return
    ends = [one.end() for one in re.finditer("[-_.:]", key[:_PREFIX])]
    for part in (key, *(key[end:] for end in ends if len(key) - end >= _LEAST_REST)):
        _keys.update((part, quote(part, safe=""), json.dumps(part)[1:-1]))
    _hidden.cache_clear()


@cache
def _hidden() -> re.Pattern[str]:
    """Every key, the longest first."""
    keys = sorted(_keys, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, keys)) or r"(?!)", re.IGNORECASE)


def shown(text: str) -> str:
    """`text` on one line of at most 1,000 characters, with keys and control characters replaced."""
    text = _hidden().sub("***", text)
    if len(text) > _HEAD + _TAIL:
        text = f"{text[: _HEAD - 3]}...{text[-_TAIL:]}"
    return visible(" ".join(text.splitlines()))


def visible(text: str, kept: str = "") -> str:
    """`text` with every control, format or half character written as its escape.

    So a text cannot move the cursor, change colours, or display in another order than stored. kept:
    characters that stay as they are, a newline perhaps.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c in kept or not _is_control(c) else c.encode("unicode_escape").decode() for c in text
    )


def half_character(text: str) -> int | None:
    """Index of a lone surrogate in `text`, which no file can hold; None without one."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def _is_control(character: str) -> bool:
    # Zero-width joiners hold emoji and several scripts together, and do nothing else.
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and (
        character not in "\u200c\u200d"
    )


def logger(name: str) -> logging.Logger:
    """The logger `name`, whose lines are cleaned by `shown` before any handler gets them."""
    log = logging.getLogger(name)
    log.addFilter(_clean)
    return log


def _clean(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage()), ()
    return True


def clean_logs(library: str) -> None:
    """Sanitise also the logs of `library`'s own handlers, which may quote foreign text."""
    for handler in logging.getLogger(library).handlers:
        handler.addFilter(_clean)
