"""Control tokens in scored texts, which could open or close turns in a scorer's prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

# How control tokens are written: <|im_end|>, <start_of_turn>, <s>, <<SYS>>, </think>, [INST], ]~b].
# An opening bracket, a word without spaces, a closing bracket. Citations ([1]) do not count. Wide
# brackets become narrow ones where a tokenizer normalises.
_OPENING = re.compile(
    r"[<>\uff1c\uff1e](?=[^\s<>\uff1c\uff1e]+[<>\uff1c\uff1e])|[\[\]](?=[^\s\[\]\d][^\s\[\]]*[\[\]])"
)


def break_up(text: str) -> str:
    """`text` with a space in everything that looks like a control token: for unknown tokenizers.

    `<|im_end|>` becomes `< |im_end|>`, which no tokenizer takes for its own, and anybody can read.
    """
    return _OPENING.sub(r"\g<0> ", text)


class ControlTokens:
    """The control tokens of a tokenizer of the transformers kind.

    Besides those that it calls special, these are added tokens that look like one (`<think>`).
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
        # Text unknown to the tokenizer becomes this token, too.
        if unknown not in (tokenizer.bos_token_id, tokenizer.eos_token_id):
            self._ids -= {unknown}

    def count(self, ids: Iterable[int]) -> Counter[int]:
        """How often each control token occurs among `ids`."""
        return Counter(i for i in ids if i in self._ids)

    def split(self, text: str) -> list[str]:
        """`text` in pieces that hold no control token, and together are `text`.

        Read one by one, they become ordinary tokens. A token of a single character stays.
        """
        cuts = [
            place + 1
            for place, character in enumerate(text)
            if character in self._first
            and any(text[place : place + length] in self._texts for length in self._lengths)
        ]
        ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
        return [text[begin:end] for begin, end in ends]
