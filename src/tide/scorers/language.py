"""Texts in a language that a scorer does not read."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Sequence

from tide.core.sanitize import logger

_LOG = logger(__name__)

# Fewer letters than this say nothing of a language.
_LEAST_LETTERS = 8
_MULTILINGUAL = "detoxify:multilingual, or a guard as guard:Qwen/Qwen3Guard-Gen-0.6B"
_warned: set[str] = set()
_lock = threading.Lock()


def is_not_latin(text: str) -> bool:
    """Whether most letters of `text` are of another script than the Latin one."""
    if text.isascii():
        return False
    letters = [c for c in text if c.isalpha()]
    foreign = sum(not _is_latin(c) for c in letters)
    return len(letters) >= _LEAST_LETTERS and 2 * foreign > len(letters)


def warn_of_other_scripts(name: str, texts: Sequence[str]) -> None:
    """Warn, once for each scorer and process, if one of `texts` is mostly not in Latin script.

    For scorers that read English alone: what they say of another language means nothing.
    """
    if name in _warned or all(map(str.isascii, texts)) or not any(map(is_not_latin, texts)):
        return
    with _lock:
        if name in _warned:
            return
        _warned.add(name)
    _LOG.warning(
        "scorer %s: reads English, and a text is mostly in another script: its score means "
        "nothing; take a scorer that knows the language (%s)", name, _MULTILINGUAL,
    )  # fmt: skip


def _is_latin(character: str) -> bool:
    return character.isascii() or unicodedata.name(character, "").startswith(
        ("LATIN", "FULLWIDTH L")
    )
