"""Where the sentences and words of an answer begin and end."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate, chain

from tide.engines.token_texts import HALF

# Tokens of the shortest block, but for the last of an answer, and of one without a sentence end.
LEAST = 8
WHERE_NONE = 32
# A sentence end with the quotes and brackets that close after it.
_ENDS = re.compile(r"""[.!?\u2026]+["'\u201d\u2019)\]*_]*(?=\s|\Z)|[\u3002\uff01\uff1f]|\n""")


def first_end(
    pieces: Sequence[str], most: int, *, ended: bool, stop: Sequence[str] = ()
) -> int | None:
    """Number of tokens in the first block; None if later tokens decide.

    most: tokens of a block. ended: whether no more come. stop: stop strings; no block ends where
    one may have begun.
    """
    least = min(LEAST, most)
    # Whether a mark ends a sentence, the token after it says.
    for end in _ends(pieces, ended):
        if end > most:
            break
        if end >= least and not maybe_stops(stop, pieces[:end]):
            return end
    if len(pieces) <= most:
        return len(pieces) if ended else None
    around = range(min(WHERE_NONE, most), least - 1, -1)
    words = [end for end in around if pieces[end][:1].isspace()]
    # Where a stop string may have begun, a block is longer than it should be.
    later = range(around[0] + 1, len(pieces) + ended if stop else 0)
    whole = [end for end in chain(around, later) if _is_whole(pieces[end - 1])]
    for end in chain(words, whole):
        if not maybe_stops(stop, pieces[:end]):
            return end
    if stop:
        return len(pieces) if ended else None
    return around[0]


def last_end(pieces: Sequence[str], stop: Sequence[str] = ()) -> int:
    """Number of tokens to keep of a truncated text: up to its last sentence end."""
    least = min(LEAST, len(pieces))
    ends = [end for end in _ends(pieces, True) if end >= least]
    for end in chain(reversed(ends), range(len(pieces), 0, -1)):
        if _is_whole(pieces[end - 1]) and not maybe_stops(stop, pieces[:end]):
            return end
    return len(pieces)


def begins_word(piece: str) -> bool:
    """Whether a word begins with this token: after a space, or in a script that writes none."""
    first = piece[:1]
    return first.isspace() or unicodedata.category(first or "a") == "Lo"


def _ends(pieces: Sequence[str], ended: bool) -> list[int]:
    """The numbers of tokens after which a sentence has ended, ascending."""
    text = "".join(pieces)
    ends: list[int] = []
    lengths = list(accumulate(map(len, pieces)))
    token = 0
    for match in _ENDS.finditer(text):
        if match.end() == len(text) and not ended and match[0] != "\n":
            break
        while lengths[token] < match.end():
            token += 1
        # A token may hold the mark and the spaces after it, but no other text.
        if not text[match.end() : lengths[token]].strip() and ends[-1:] != [token + 1]:
            ends.append(token + 1)
    return ends


def _is_whole(piece: str) -> bool:
    """Whether the text may end after a token: not inside of a character."""
    return piece != "" and not piece.endswith(HALF)


def maybe_stops(stop: Sequence[str], pieces: Sequence[str]) -> bool:
    """Whether a stop string may begin at the end of the pieces."""
    text = "".join(pieces) if stop else ""
    return any(text.endswith(one[:count]) for one in stop for count in range(1, len(one)))
