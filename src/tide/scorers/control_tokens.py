"""Disarms control tokens in scored texts, which could open or close turns in a scorer's prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

# Matches the first bracket of control tokens: <|im_end|>, <start_of_turn>, <<SYS>>, [INST], ]~b].
# A token is two brackets around characters without spaces, but not a citation ([1]). Fullwidth
# brackets count because a tokenizer may normalise them.
_OPENING = re.compile(
    r"[<>\uff1c\uff1e](?=[^\s<>\uff1c\uff1e]+[<>\uff1c\uff1e])|[\[\]](?=[^\s\[\]\d][^\s\[\]]*[\[\]])"
)


def break_up(text: str) -> str:
    """Insert a space into everything that looks like a control token of an unknown tokenizer.

    `<|im_end|>` becomes `< |im_end|>`, which is readable and no tokenizer's control token.
    """
    return _OPENING.sub(r"\g<0> ", text)


class ControlTokens:
    """The control tokens of a transformers tokenizer.

    They are the special tokens, and added tokens that look like control tokens (`<think>`).
    """

    def __init__(self, tokenizer: Any) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).items()
        found = {i: t.content for i, t in added if t.special or break_up(t.content) != t.content}
        found |= zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        self._texts = frozenset(filter(None, found.values()))
        self._lengths = sorted({len(text) for text in self._texts})
        self._first = frozenset(text[:1] for text in self._texts)
        self._ids = frozenset(found)
        unknown = tokenizer.unk_token_id
        # The tokenizer also returns this token for unknown text.
        if unknown not in (tokenizer.bos_token_id, tokenizer.eos_token_id):
            self._ids -= {unknown}

    def count(self, ids: Iterable[int]) -> Counter[int]:
        """Count the occurrences of each control token in `ids`."""
        return Counter(i for i in ids if i in self._ids)

    def split(self, text: str) -> list[str]:
        """Split `text` into pieces without control tokens.

        Pieces that are tokenized separately become ordinary tokens. A control token of one
        character cannot be split.
        """
        cuts = [
            place + 1
            for place, character in enumerate(text)
            if character in self._first
            and any(text[place : place + length] in self._texts for length in self._lengths)
        ]
        ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
        return [text[begin:end] for begin, end in ends]
