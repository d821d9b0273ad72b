"""Masks the toxic words of a text: the terms of the bundled list of profanities.

The list is Surge AI's (MIT, see `pocket/LICENSE-profanity`). The file holds hashes of the words.
"""

from __future__ import annotations

import re
from functools import cache

from tide.core.results import mask
from tide.pocket import PROFANITIES

_LONGEST = 3  # maximum number of words in a listed term
_LISTED_WORD = re.compile(r"[^\W_]+")

# Matches a word and the space before it. Spaced letters ("r u d e") are one word; an HTML tag is
# separate from adjacent words.
_WORD = re.compile(
    r"\s*(?:(?<!\w)(?:[^\W_]|\*)(?:[\s._-]+(?:[^\W_]|\*)){2,}(?!\w)|<[^<>\s]*>?|[^\s<]+)"
)


def masked(text: str) -> str:
    """Mask the listed words of `text`, except their first letters."""
    words = _WORD.findall(text)
    listed = _listed(words)
    masked_words = [mask(word) if number in listed else word for number, word in enumerate(words)]
    end = sum(map(len, words))
    return "".join(masked_words) + text[end:]


def _listed(words: list[str]) -> set[int]:
    """Return the indices of words that belong to listed terms; shorter terms take precedence."""
    listed: set[int] = set()
    for length in range(1, _LONGEST + 1):
        for start in range(len(words) - length + 1):
            term = range(start, start + length)
            hashes = term_hashes("".join(words[start : start + length]))
            if listed.isdisjoint(term) and not bundled_terms().isdisjoint(hashes):
                listed.update(term)
    return listed


def term_hashes(text: str) -> set[int]:
    """Hash each run of one to three words of a text, normalized as in the scorer `pocket`."""
    from tide.scorers.pocket import normalize  # noqa: PLC0415  (slow import)
    from tide.scorers.word_lists import term_hash  # noqa: PLC0415

    words = _LISTED_WORD.findall(normalize(text))
    return {
        term_hash(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    }


@cache
def bundled_terms() -> frozenset[int]:
    """Return the hashes of the bundled list of profanities."""
    from safetensors import safe_open  # noqa: PLC0415  (numpy)

    with safe_open(PROFANITIES, framework="numpy") as file:
        return frozenset(file.get_tensor("listed").tolist())
