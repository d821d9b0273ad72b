"""Whether a text is one at all: loops and rubbish, which are neither toxic nor unlikely."""

from __future__ import annotations

import re
from itertools import pairwise

_REPEATED = 0.4  # share of repeated pairs of words
_LETTERS = 6
_LOOP = re.compile(r"(.{2,12})\1{3}", re.DOTALL)


def is_degenerate(text: str) -> bool:
    """Whether a text is degenerate.

    It is where more than 40 % of its pairs of words are repeated, where the same 2 to 12 characters
    follow each other four times, where it has fewer than 6 letters and digits, or where less than
    half of it is letters and digits, without white space. A perplexity does not see it: repetition
    is likely.
    """
    words = text.split()
    pairs = list(pairwise(words))
    letters = sum(map(str.isalnum, text))
    repeats = len(pairs) - len(set(pairs))
    return (
        repeats > _REPEATED * len(pairs)
        or letters < max(_LETTERS, len("".join(words)) / 2)
        or _LOOP.search(text) is not None
    )
