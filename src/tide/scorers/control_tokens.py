"""Disarms control tokens in scored texts, which could open or close turns in a scorer's prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

# Matches the first bracket of what may be a control token of some tokenizer: two brackets around
# characters without spaces, but not a citation ([1]). Fullwidth brackets count because a tokenizer
# may normalise them.
_BRACKETED = re.compile(
    r"[<>\uff1c\uff1e](?=[^\s<>\uff1c\uff1e]+[<>\uff1c\uff1e])|[\[\]](?=[^\s\[\]\d][^\s\[\]]*[\[\]])"
)
# Words of control tokens such as <s>, <start_of_turn>, <seed:bos> and <unused99>.
_WORDS = (
    "0x|answer|assistant|begin|bos|bot|call|cls|end|eod|eom|eop|eos|eot|extra|fim|function|gmask|"
    "header|human|im|image|mask|message|model|pad|reserved|role|s|sep|sop|special|start|sys|"
    "system|think|token|tool|turn|unk|unused|user"
)
_ANGLE, _INSIDE = r"[<>\uff1c\uff1e]", r"[^\s<>\uff1c\uff1e]"
# Matches the first bracket of what a tokenizer that is unknown is likely to have as control token:
# these words in lower case, capitals, or brackets with signs (<|im_end|>, [INST], ]~b]). Generic
# types, indices, links and HTML are ordinary text: List<String>, a[i][j], <b>.
_LIKELY = re.compile(
    rf"{_ANGLE}(?={_INSIDE}++{_ANGLE})(?:"
    rf"(?={_INSIDE}*?[|\uff5c~])"
    rf"|(?=[/_A-Z\d]++{_ANGLE})(?={_INSIDE}*?[A-Z]{{2}})"
    rf"|(?=/?(?:{_INSIDE}*[_:-])?(?:{_WORDS})(?:[_:\-\d]{_INSIDE}*)?{_ANGLE}))"
    r"|[\[\]](?=[^\s\[\]]++[\[\]])(?=[^\s\[\]]*?(?:[|~]|[A-Z]{2}))"
)


def break_up(text: str) -> str:
    """Insert a space into everything that is likely a control token of an unknown tokenizer.

    `<|im_end|>` becomes `< |im_end|>`, which is readable and no tokenizer's control token.
    """
    return _LIKELY.sub(r"\g<0> ", text)


class ControlTokens:
    """The control tokens of a transformers tokenizer.

    They are the special tokens, and added tokens that look like control tokens (`<think>`).
    """

    def __init__(self, tokenizer: Any) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).items()
        texts = {i: t.content for i, t in added if t.special or _BRACKETED.search(t.content)}
        texts |= zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        longest_first = sorted(filter(None, texts.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._ids = frozenset(texts)
        unknown = tokenizer.unk_token_id
        # The tokenizer also returns this token for unknown text.
        if unknown not in (tokenizer.bos_token_id, tokenizer.eos_token_id):
            self._ids -= {unknown}

    def count(self, ids: Iterable[int]) -> Counter[int]:
        """Count the occurrences of each control token in `ids`."""
        return Counter(i for i in ids if i in self._ids)

    def break_up(self, text: str) -> str:
        """Insert a space into every control token, like the function of the same name.

        A control token of one character cannot be broken up.
        """
        return self._pattern.sub(lambda token: f"{token[0][:1]} {token[0][1:]}", text)
