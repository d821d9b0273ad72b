"""Token ids as the texts that they add, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tide.core.text import HALF


class TokenTexts:
    """The text that each token adds: `"".join(of([ids])[0])` is the text of all `ids`.

    A token that ends inside a code point adds nothing; the one that completes it adds all since. So
    a text may be cut after any token that adds text, unless that text ends with an incomplete code
    point. texts: `Engine.texts`, the texts of rows of token ids. The text of a token by itself is
    looked up once.
    """

    def __init__(self, texts: Callable[[Sequence[Sequence[int]]], list[str]]) -> None:
        self._texts = texts
        self._known: dict[int, str] = {}

    def of(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        """The texts of the tokens of each row."""
        new = list({token for ids in rows for token in ids if token not in self._known})
        wholes = self._texts([*rows, *([token] for token in new)])
        self._known.update(zip(new, wholes[len(rows) :], strict=True))
        return [self._of(ids, whole) for ids, whole in zip(rows, wholes, strict=False)]

    def _of(self, ids: Sequence[int], whole: str) -> list[str]:
        texts = [self._known[token] for token in ids]
        if "".join(texts) == whole:
            return texts
        # Tokens that are parts of characters, or mean something else after others.
        ends = [0]
        for text in self._texts([ids[:count] for count in range(1, len(ids))]):
            whole_so_far = whole.startswith(text) and not text.endswith(HALF)
            ends.append(max(ends[-1], len(text) if whole_so_far else 0))
        ends.append(len(whole))
        return [whole[start:end] for start, end in pairwise(ends)]
