"""Words as tokens, for an engine that does not know its model's tokenizer.

A word includes the spaces before it; runs of punctuation, and two emoji or characters of a script
without spaces, are words, too. So there are rarely more words than model tokens, and they do not
depend on how a server cuts its text into events. Each part of a word has a longest length, so that
what waits for its end is short. The id of a word is its UTF-8 read as one number: nothing has to be
remembered, and every process gives the same.
"""

from __future__ import annotations

import regex

from tide.core.chat import Chat, Rendered
from tide.core.text import UNSPACED

# A server that sends more characters for a token than this does not keep to what it was asked for.
LONGEST_TOKEN = 256
_LETTERS = rf"[\p{{L}}\p{{M}}--[{UNSPACED}]]{{1,24}}"
_WORD = regex.compile(
    rf"(?V1)\s{{0,24}}(?:(?:[{UNSPACED}][\p{{M}}\u200d]{{0,8}}+){{1,2}}"
    rf"|{_LETTERS}(?:['\u2019]{_LETTERS}){{0,3}}|\d{{1,24}}"
    rf"|[[^\w\s]--[{UNSPACED}]]{{1,24}}|_{{1,24}}|\w)|\s{{1,24}}"
)
# What may stand after a word that may go on.
_OPEN_ENDS = ("", "'", "\u2019")
_TEXT, _CHAT = 1, 2


class ChatText(Rendered):
    """A chat as people read it; the server writes it as its model wants it. chat: the messages."""

    __slots__ = ("chat",)
    chat: Chat


def words_of(text: str) -> list[str]:
    """`text` in words; joined, they are the text."""
    return [word.group() for word in _WORD.finditer(text)]


def id_of(word: str | Chat) -> int:
    """The token id of a word, or of a whole chat."""
    if isinstance(word, Chat):
        return int.from_bytes(bytes([_CHAT]) + word.model_dump_json().encode(), "big")
    return int.from_bytes(bytes([_TEXT]) + word.encode(), "big")


def word_of(token_id: int) -> str | Chat:
    """What `id_of` made the id of. Raises ValueError for any other number."""
    if token_id < 0:
        raise ValueError("a token id below 0")
    kind, *_ = written = token_id.to_bytes((token_id.bit_length() + 7) // 8 or 1, "big")
    if kind == _CHAT:
        return Chat.model_validate_json(written[1:])
    if kind != _TEXT:
        raise ValueError("a token id that stands for no text")
    return written[1:].decode()


def text_of(token_ids: tuple[int, ...]) -> str:
    """The text of words. Raises ValueError for a chat, which has none."""
    found = [word_of(one) for one in token_ids]
    if any(isinstance(word, Chat) for word in found):
        raise ValueError("a chat in the middle of a text")
    return "".join(map(str, found))


class Words:
    """Cuts text that comes piece by piece into words, at most `most`; the last holds the rest.

    add and end return the words that have become whole, the same however the text was cut before.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._rest = ""
        self._last: list[str] = []  # the text of the last word that may be

    def add(self, text: str) -> list[str]:
        if self._left == 1:
            self._last.append(text)
            return []
        rest, end = self._rest + text, 0
        found: list[str] = []
        for word in _WORD.finditer(rest):
            if len(found) == self._left - 1 or rest[word.end() : word.end() + 2] in _OPEN_ENDS:
                break
            found.append(word.group())
            end = word.end()
        self._left -= len(found)
        self._rest = rest[end:]
        return found

    def end(self) -> list[str]:
        """No more comes."""
        words = words_of("".join([self._rest, *self._last]))
        most = max(0, self._left - 1)
        return [*words[:most], *(["".join(words[most:])] if words[most:] else [])]
