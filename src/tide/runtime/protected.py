"""Finds words that a repair must not replace, since the answer would then say something false."""

from __future__ import annotations

import re

# A word in capitals may be shouted, so it is not a name.
_NAME = re.compile(r"[A-Z][a-z'\u2019.-]*[a-z]")
_BEGINS_SENTENCE = re.compile(r"(?:^|[.!?:\n][\"'\u201d\u2019)*_]*)[\s\"'\u201c\u2018(*_#>-]*$")
_MARKS = "\"'\u201c\u201d\u2018\u2019()*_.,;:!?"


def is_protected(before: str, word: str, prompt: str) -> bool:
    """Whether a word belongs to code, a quotation, a number or a name.

    before: the answer up to the word. prompt: what the user wrote; its capitalised words are names
    also where a sentence begins.
    """
    bare = word.strip().strip(_MARKS)
    return (
        _in_code(before)
        or _in_quotation(before)
        or word.strip()[:1] in ('"', "\u201c")
        or any(character.isdigit() for character in bare)
        or _is_name(before, bare, prompt)
    )


def _in_code(before: str) -> bool:
    line = before.rpartition("\n")[2]
    return before.count("```") % 2 == 1 or line.count("`") % 2 == 1


def _in_quotation(before: str) -> bool:
    line = before.rpartition("\n")[2]
    is_open = line.count('"') % 2 == 1 or line.count("\u201c") > line.count("\u201d")
    return is_open or line.lstrip().startswith(">")


def _is_name(before: str, word: str, prompt: str) -> bool:
    if not _NAME.fullmatch(word):
        return False
    is_asked_for = re.search(rf"\b{re.escape(word)}\b", prompt) is not None
    return is_asked_for or _BEGINS_SENTENCE.search(before) is None
