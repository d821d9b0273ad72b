"""Finds boundaries of characters, words and sentences among tokens, in any script.

Also tells whether a text is degenerate, and separates reasoning at its beginning from the rest.

A character is an extended grapheme cluster of Unicode: a letter with its marks, a Hangul syllable,
an emoji of several code points. *Pieces* are the texts of tokens from `Engine.token_texts`; the
piece of a token that ends inside a code point is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise

import regex

HALF = "\ufffd"  # decoders write this for an incomplete code point

# Content of a character set for `regex`: emoji, and scripts without spaces between words (Han,
# kana, Thai, Lao, Khmer, Burmese), by the Unicode line-breaking classes that need no space.
UNSPACED = "".join(
    rf"\p{{Line_Break={name}}}" for name in ("ID", "CJ", "SA", "EB", "RI")
) + r"\p{Ideographic}"  # fmt: skip
_UNSPACED = regex.compile(f"[{UNSPACED}]")
_LETTER = regex.compile(r"(?V1)[\p{L}\p{M}--[\p{Ideographic}\p{ASCII}]]\p{M}*")
_WRITTEN = regex.compile(r"[\p{L}\p{M}\p{N}]")
_LONGEST = 32  # maximum code points examined per character
# Minimum tokens of a scored sentence (except the last); a longer one ends at the first word end
# after `MOST`.
LEAST = 8
MOST = 64
_NEAR = 16  # maximum tokens of the examined end of a sentence
# A sentence end with the closing quotes and brackets after it.
_ENDS = regex.compile(
    r"""(?V1)[.!?\u2026]+["'\u201d\u2019)\]*_]*(?=\s|\Z)|[\p{Sentence_Terminal}--[.!?]]|\n"""
)
# A text is degenerate above this share of repeated word pairs, below this number of letters, or if
# it contains this loop.
_REPEATED = 0.4
_LETTERS = 6
# A letter of these scripts is a syllable or a word, and counts as three letters.
_SYLLABLE = regex.compile(r"[\p{Ideographic}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_LOOP = regex.compile(r"(.{2,12})\1{3}", regex.DOTALL)


def is_degenerate(text: str) -> bool:
    """Whether a text loops or has hardly any words.

    This is so if more than 40 % of the word pairs are repeated, the same 2 to 12 characters occur
    four times in a row, or letters and digits number fewer than 6 or make up less than half of the
    text (white space excluded). Perplexity does not detect this: models find loops likely.
    Combining marks count as letters, which they are in many scripts.
    """
    words = text.split()
    pairs = list(pairwise(words))
    repeats = len(pairs) - len(set(pairs))
    letters, syllables = len(_WRITTEN.findall(text)), len(_SYLLABLE.findall(text))
    return (
        repeats > _REPEATED * len(pairs)
        or letters + 2 * syllables < _LETTERS
        or letters < len("".join(words)) / 2
        or _LOOP.search(text) is not None
    )


def begins_word(text: str) -> bool:
    """Whether a text begins with a space or with a script that has no spaces between words."""
    first = text[:1]
    return first.isspace() or (not first.isascii() and _UNSPACED.match(first) is not None)


def is_letter(text: str) -> bool:
    """Whether a text is one letter outside of ASCII, ideographs excluded."""
    return _LETTER.fullmatch(text) is not None


def has_letter(text: str) -> bool:
    """Whether a text holds a letter, a digit or a combining mark."""
    return _WRITTEN.search(text) is not None


def splits_character(before: str, after: str) -> bool:
    """Whether `before` ends inside a character that `after` continues."""
    near = before[-_LONGEST:]
    text = near + after[:1]
    if text[-2:].isascii():  # "\r\n" is the only ASCII character of two code points
        return near[-1:] == "\r" and after[:1] == "\n"
    return bool(near and after) and any(
        character.start() < len(near) < character.end() for character in regex.finditer(r"\X", text)
    )


def ends_sentence(pieces: Sequence[str], end: int) -> bool:
    """Whether a sentence or a line ends at `end`, where a word ends."""
    before = "".join(pieces[max(0, end - _NEAR) : end]).rstrip()
    ends_line = "\n" in "".join(pieces[end - 1 : end + 1])
    return ends_line or any(match.end() == len(before) for match in _ENDS.finditer(before))


def word_starts(pieces: Sequence[str], start: int = 0) -> Iterator[int]:
    """Yield the tokens that begin a word without splitting a character; the first one is `start`.

    The time is linear in the pieces that are read, as an answer may arrive as a whole.
    """
    if start < len(pieces):
        yield start
    near, first = "", start  # text before the last allowed cut; index of the first token after it
    for number in range(start, len(pieces)):
        if not _is_whole(pieces[number]):
            continue
        unit = "".join(pieces[first : number + 1])
        if first > start and begins_word(unit) and not splits_character(near, unit):
            yield first
        near, first = (near + unit)[-_LONGEST:], number + 1


def word_ends(pieces: Sequence[str], start: int) -> Iterator[int]:
    """Yield the positions after `start` where one word ends and the next word begins, ascending."""
    return islice(word_starts(pieces, start), 1, None)


def cut(pieces: Sequence[str], length: int) -> list[str]:
    """Return the pieces of the first `length` characters; the last piece may be cut."""
    starts = accumulate(map(len, pieces), initial=0)
    return [
        piece[: length - start]
        for piece, start in zip(pieces, starts, strict=False)
        if start < length
    ]


def before_half(pieces: Sequence[str]) -> int:
    """Return the number of tokens before the first incomplete code point, or of all tokens."""
    end = 0
    for number, piece in enumerate(pieces, 1):
        if HALF in piece:
            return end
        end = number if piece else end
    return len(pieces)


def last_whole(pieces: Sequence[str]) -> int:
    """Return the largest number of tokens after which the text may be cut, or 0."""
    return next((end for end in range(len(pieces), 0, -1) if _is_whole(pieces[end - 1])), 0)


def _is_whole(piece: str) -> bool:
    """Whether the last code point of a token is complete."""
    return piece != "" and not piece.endswith(HALF)


def maybe_stops(stop: Sequence[str], pieces: Sequence[str], end: int) -> bool:
    """Whether the text of the first `end` pieces ends with the beginning of a stop string."""
    if not stop:
        return False
    longest = max(map(len, stop))
    text = "".join(pieces[start_before(pieces, end, longest) : end])
    return any(text.endswith(string[:count]) for string in stop for count in range(1, len(string)))


def start_before(pieces: Sequence[str], end: int, length: int) -> int:
    """Return the last start from which the pieces before `end` have `length` characters, or 0."""
    while end > 0 and length > 0:
        end -= 1
        length -= len(pieces[end])
    return end


_OPEN, _CLOSE = "<think>", "</think>"


class Thoughts:
    """Separates leading reasoning, `<think>...</think>`, from the answer.

    reasoning: the reasoning so far. Without a closing tag, the whole answer is reasoning. inline:
    whether the answer may begin with reasoning; otherwise, all text belongs to the answer.
    """

    def __init__(self, *, inline: bool = True) -> None:
        self.reasoning = ""
        self._held = ""
        self._state = "before" if inline else "after"

    def add(self, text: str) -> str:
        """Take the next piece; return the text that is known not to be reasoning."""
        held, self._held = self._held + text, ""
        if self._state == "before":
            begun = held.lstrip()
            if len(begun) < len(_OPEN) and _OPEN.startswith(begun):
                self._held = held
                return ""
            self._state = "within" if begun.startswith(_OPEN) else "after"
            held = begun[len(_OPEN) :] if self._state == "within" else held
        if self._state == "within":
            thought, closed, rest = held.partition(_CLOSE)
            if not closed:
                sure = max(0, len(held) - len(_CLOSE) + 1)
                thought, self._held, rest = held[:sure], held[sure:], ""
            self._state = "after" if closed else "within"
            self.reasoning += thought
            return rest
        return held

    def end(self) -> str:
        """End the answer; return held-back text that is not reasoning."""
        held, self._held = self._held, ""
        if self._state == "within":
            self.reasoning += held
            return ""
        return held
