"""The bundled list of profanities, as hashes: masks look words up in it.

It is Surge AI's list (MIT, see `pocket/LICENSE-profanity`); `scripts/list_profanities.py` makes the
file. Hashes keep the words themselves out of the package.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from tide.core.errors import ScorerError, guarded
from tide.pocket import PROFANITIES
from tide.scorers.pocket import normalize

LISTED = "listed"  # the tensor with the hashes
LONGEST = 3  # words of a listed term
_WORD = re.compile(r"[^\W_]+")


def term_hashes(text: str) -> set[int]:
    """Hashes of every one to three words in a row, in the spelling that scorers read."""
    words = _WORD.findall(normalize(text))
    return {
        _hash(words[start : start + length])
        for length in range(1, LONGEST + 1)
        for start in range(len(words) - length + 1)
    }


def listed_hashes(terms: Iterable[str]) -> NDArray[np.uint64]:
    """The stored form of a list of terms: sorted hashes, without terms of more than three words."""
    found = [_WORD.findall(normalize(term)) for term in terms]
    hashes = {_hash(words) for words in found if 1 <= len(words) <= LONGEST}
    return np.array(sorted(hashes), dtype=np.uint64)


@cache
def bundled_terms() -> frozenset[int]:
    """The hashes of the bundled list."""
    with (
        guarded(ScorerError, f"list of profanities: cannot use {PROFANITIES}"),
        safe_open(PROFANITIES, framework="numpy") as file,
    ):
        return frozenset(file.get_tensor(LISTED).tolist())


def _hash(words: Sequence[str]) -> int:
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
