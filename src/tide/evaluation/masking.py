"""Masks the toxic words of a text: the terms of the bundled list of profanities."""

from __future__ import annotations

import re

from tide.core.results import mask

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
    from tide.scorers.words import (  # noqa: PLC0415  (slow import)
        LONGEST,
        bundled_terms,
        term_hashes,
    )

    listed: set[int] = set()
    for length in range(1, LONGEST + 1):
        for start in range(len(words) - length + 1):
            term = range(start, start + length)
            hashes = term_hashes("".join(words[start : start + length]))
            if listed.isdisjoint(term) and not bundled_terms().isdisjoint(hashes):
                listed.update(term)
    return listed
