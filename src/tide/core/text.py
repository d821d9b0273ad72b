"""Characters and words, in any script.

A character is what a reader takes for one (Unicode's extended grapheme cluster): a letter with its
marks, a Hangul syllable, an emoji of several code points.
"""

from __future__ import annotations

import regex

HALF = "\ufffd"  # what decoders write for a part of a code point

# For a set of `regex`: scripts without spaces between words (Han, kana, Thai, Lao, Khmer, Burmese),
# and emoji. By Unicode's line breaking: a line may end beside them without a space.
UNSPACED = "".join(
    rf"\p{{Line_Break={name}}}" for name in ("ID", "CJ", "SA", "EB", "RI")
) + r"\p{Ideographic}"  # fmt: skip
_UNSPACED = regex.compile(f"[{UNSPACED}]")
_LETTER = regex.compile(r"(?V1)[\p{L}\p{M}--[\p{Ideographic}\p{ASCII}]]\p{M}*")
_WRITTEN = regex.compile(r"[\p{L}\p{M}\p{N}]")
_LONGEST = 32  # code points of a character that are looked at


def begins_word(text: str) -> bool:
    """Whether a text begins with a space, or in a script that writes none between words."""
    return text[:1].isspace() or _UNSPACED.match(text) is not None


def is_letter(text: str) -> bool:
    """Whether a text is one letter outside of ASCII, and no ideograph."""
    return _LETTER.fullmatch(text) is not None


def has_letter(text: str) -> bool:
    """Whether a text holds a letter, a digit or a mark of one, and not punctuation alone."""
    return _WRITTEN.search(text) is not None


def splits_character(before: str, after: str) -> bool:
    """Whether `before` ends inside a character that `after` goes on with."""
    near = before[-_LONGEST:]
    both = near + after[:1]
    return bool(near and after) and any(
        one.start() < len(near) < one.end() for one in regex.finditer(r"\X", both)
    )
