"""Words as tokens, for an engine that does not know its model's tokenizer.

A word includes the spaces before it. Runs of punctuation are words, too, and so are two emoji or
characters of a script without spaces. So a text rarely has more words than model tokens, and its
words do not depend on how a server cuts the text into events. Each part of a word has a maximum
length, so that a stream never holds back much text.

`TokenSource` finds the model's tokens that begin banned words. It uses the server's `/tokenize` and
`/detokenize` (vLLM and llama.cpp; llama-cpp-python has these paths below `/extras`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import regex
from pydantic import AliasChoices, BaseModel, Field

from tide.core.chat import Chat, Rendered
from tide.core.http import Rows, ServerFailed
from tide.core.text import UNSPACED, is_letter
from tide.engines.base import MOST_SPELLINGS
from tide.engines.openai.upstream import Upstream

_Text = Annotated[str, Field(max_length=1_000_000)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
# Maximum number of characters of a token. A server that sends more ignores `max_tokens`.
LONGEST_TOKEN = 256
_LETTERS = rf"[\p{{L}}\p{{M}}--[{UNSPACED}]]{{1,24}}"
_WORD = regex.compile(
    rf"(?V1)\s{{0,24}}(?:(?:[{UNSPACED}][\p{{M}}\u200d]{{0,8}}+){{1,2}}"
    rf"|{_LETTERS}(?:['\u2019]{_LETTERS}){{0,3}}|\d{{1,24}}"
    rf"|[[^\w\s]--[{UNSPACED}]]{{1,24}}|_{{1,24}}|\w)|\s{{1,24}}"
)
# A word at the end of a text may still continue if one of these strings is all that follows.
_OPEN_ENDS = ("", "'", "\u2019")


class ChatText(Rendered):
    """A chat as readable text, and as one token of a prompt.

    chat: its messages, to which the server applies its own template.
    """

    __slots__ = ("chat",)
    chat: Chat


def words_of(text: str) -> list[str]:
    """Split a text into words; joined, the words are the text."""
    return [word.group() for word in _WORD.finditer(text)]


class Words:
    """Cuts streamed text into at most `limit` words; the last word holds the rest of the text.

    `add` and `end` return complete words, which do not depend on how the stream cuts the text.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._rest = ""
        self._last: list[str] = []  # the text of the last allowed word

    def add(self, text: str) -> list[str]:
        if self._left == 1:
            self._last.append(text)
            return []
        rest, end = self._rest + text, 0
        words: list[str] = []
        for word in _WORD.finditer(rest):
            if len(words) == self._left - 1 or rest[word.end() : word.end() + 2] in _OPEN_ENDS:
                break
            words.append(word.group())
            end = word.end()
        self._left -= len(words)
        self._rest = rest[end:]
        return words

    @property
    def ends_word(self) -> bool:
        """Whether the text after the complete words begins another word."""
        return self._rest[:1] == " " and not self._rest[:2].isspace()

    def end(self) -> list[str]:
        """End the text."""
        text, end = "".join([self._rest, *self._last]), 0
        words: list[str] = []
        for word in islice(_WORD.finditer(text), max(0, self._left - 1)):
            words.append(word.group())
            end = word.end()
        return [*words, text[end:]] if end < len(text) else words


# Words are tokenized after this text, since some tokenizers add a space at the start of a text.
_ANCHOR = "\n"
_PROBE = "\n kind people"
_KNOWN = 20_000


class Tokens(BaseModel):
    tokens: Rows[TokenId] = Field(max_length=100_000)


class Detokenized(BaseModel):
    """The field is `prompt` in vLLM, `content` in llama.cpp, `text` in llama-cpp-python."""

    text: _Text = Field(validation_alias=AliasChoices("prompt", "content", "text"))


class _TokenApi(NamedTuple):
    """A server's token API. field: name of the field for a text. more: further fields."""

    tokenize: str
    detokenize: str
    field: str
    more: dict[str, Any]


_TOKEN_APIS = (
    _TokenApi("/tokenize", "/detokenize", "prompt", {"add_special_tokens": False}),
    _TokenApi("/tokenize", "/detokenize", "content", {"add_special": False}),
    _TokenApi("/extras/tokenize", "/extras/detokenize", "input", {}),
)


class TokenSource:
    """Finds the first tokens of words, in every spelling, by a server's token API."""

    def __init__(self, upstream: Upstream, model: str, api: _TokenApi) -> None:
        self.name = f"the server's {api.tokenize}"
        self._upstream, self._model, self._api = upstream, model, api
        self._known: dict[str, tuple[int, ...]] = {}
        self._anchor: list[int] | None = None

    async def tokenize(self, text: str) -> list[int]:
        api = self._api
        body = {"model": self._model, api.field: text, **api.more}
        return (await self._upstream.request(api.tokenize, Tokens, body)).tokens

    async def detokenize(self, ids: Sequence[int]) -> str:
        body = {"model": self._model, "tokens": list(ids)}
        return (await self._upstream.request(self._api.detokenize, Detokenized, body)).text

    async def ids(self, words: Sequence[str]) -> list[int]:
        """Return the ids to ban for these words, which include the spaces before them.

        A word has no ids if its tokens cannot be found, or if its first token is a single non-ASCII
        letter, with which many other words begin. Raises ServerFailed for invalid answers.
        """
        for word in words:
            if word in self._known:
                continue
            if len(self._known) >= _KNOWN:
                self._known.clear()
            try:
                self._known[word] = await self._tokens(word)
            except ServerFailed:
                if word.isascii():
                    raise
                self._known[word] = ()  # the word's tokens are parts of characters
        return list(dict.fromkeys(token for word in words for token in self._known[word]))

    async def _tokens(self, word: str) -> tuple[int, ...]:
        """Return the word's first token, and the tokens that differ only in case and spaces.

        The first token of another spelling may be a single letter, which must not be banned.
        """
        for token in await self._read(word):
            text = await self.detokenize([token])
            if core := text.strip():  # a token may be a space alone
                break
        else:
            return ()
        if not word.strip().startswith(core) or is_letter(core):
            return ()
        tokens = [token]
        for spelling in spellings(text):
            ids = await self._read(spelling)
            if len(ids) == 1 and ids[0] not in tokens:
                tokens.append(ids[0])
        return tuple(tokens)[:MOST_SPELLINGS]

    async def _read(self, text: str) -> list[int]:
        """Return the tokens of `text` after the anchor; none if the anchor's tokens change."""
        if self._anchor is None:
            self._anchor = await self.tokenize(_ANCHOR)
        before = self._anchor
        ids = await self.tokenize(_ANCHOR + text)
        return ids[len(before) :] if before and ids[: len(before)] == before else []


def spellings(word: str) -> list[str]:
    """Return spellings of a visible word, with and without a space and with other capitals."""
    core = word.strip()
    cases = dict.fromkeys((core, core.lower(), core.capitalize(), core.upper()))
    return [space + spelling for spelling in cases for space in (" ", "")]


def same_word(word: str) -> str:
    """Return a key that is equal for all spellings of a word."""
    return word.strip().casefold() or word


async def ask_server(upstream: Upstream, model: str) -> TokenSource | None:
    """Find the server's token API, if it has one. Impossible answers raise ServerFailed."""
    for api in _TOKEN_APIS:
        source = TokenSource(upstream, model, api)
        try:
            ids = await source.tokenize(_PROBE)
        except ServerFailed as error:
            if error.status in (0, 429):  # a wrong answer; a busy server
                raise
            continue  # the server has another API, or no API for tokens
        if not ids:  # the server looked for the text in another field
            continue
        text = await source.detokenize(ids)
        if not text.endswith(_PROBE.strip()):  # a token for BOS may come before
            problem = "answered tokens that do not decode to the text of the request"
            raise ServerFailed(f"{api.tokenize}: {problem}")
        return source
    return None
