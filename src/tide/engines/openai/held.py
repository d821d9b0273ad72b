"""Which of a model's tokens begin the banned words.

They are asked of the server where it tells (vLLM's and llama.cpp's `/tokenize` and `/detokenize`,
llama-cpp-python's below `/extras`), or of a tokenizer that was named.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tide.core.http import ServerFailed
from tide.core.text import is_letter
from tide.engines.base import MOST_SPELLINGS
from tide.engines.openai.protocol import Detokenized, Tokens
from tide.engines.remote.pool import Endpoint, EndpointPool, EndpointRefused

# Words are read after it, as in the middle of a text: some tokenizers put a space before a text.
_ANCHOR = "\n"
_PROBE = "\n kind people"
_KNOWN = 20_000

Tokenize = Callable[[str], Awaitable[list[int]]]
Detokenize = Callable[[Sequence[int]], Awaitable[str]]


class _Wire(NamedTuple):
    tokenize: str
    detokenize: str
    field: str
    more: dict[str, Any]


_WIRES = (
    _Wire("/tokenize", "/detokenize", "prompt", {"add_special_tokens": False}),
    _Wire("/tokenize", "/detokenize", "content", {"add_special": False}),
    _Wire("/extras/tokenize", "/extras/detokenize", "input", {}),
)


class HeldWords:
    """The tokens with which words begin, in every spelling. name: where they come from."""

    def __init__(self, name: str, tokenize: Tokenize, detokenize: Detokenize) -> None:
        self.name = name
        self._tokenize, self._detokenize = tokenize, detokenize
        self._known: dict[str, tuple[int, ...]] = {}
        self._anchor: list[int] | None = None

    async def ids(self, words: Sequence[str]) -> list[int]:
        """Of words with the spaces before them.

        None for a word of which it cannot be said, nor for one that begins with a token of a single
        letter outside of ASCII: many others begin with it.

        Raises ServerFailed for answers that are none.
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
                self._known[word] = ()  # its tokens are parts of characters
        return list(dict.fromkeys(token for word in words for token in self._known[word]))

    async def _tokens(self, word: str) -> tuple[int, ...]:
        """The token with which it begins, and those of the same text but for capitals and spaces.

        Of the word's own spellings the first token could be a letter, without which is no writing.
        """
        for token in await self._read(word):
            says = await self._detokenize([token])
            if core := says.strip():  # not a space that stands alone
                break
        else:
            return ()
        if not word.strip().startswith(core) or is_letter(core):
            return ()
        alike = [await self._read(one) for one in spellings(says)]
        found = dict.fromkeys((token, *(ids[0] for ids in alike if len(ids) == 1)))
        return tuple(found)[:MOST_SPELLINGS]

    async def _read(self, text: str) -> list[int]:
        """Its tokens in the middle of a text; none where they cannot be told apart."""
        if self._anchor is None:
            self._anchor = await self._tokenize(_ANCHOR)
        before = self._anchor
        ids = await self._tokenize(_ANCHOR + text)
        return ids[len(before) :] if before and ids[: len(before)] == before else []


def spellings(word: str) -> list[str]:
    """A word as a model may write it: with a space and without, and with other capitals."""
    core = word.strip()
    if not core:
        return [word]
    cases = dict.fromkeys((core, core.lower(), core.capitalize(), core.upper()))
    return [space + one for one in cases for space in (" ", "")]


def same_word(word: str) -> str:
    """What is equal for all spellings of a word."""
    return word.strip().casefold() or word


async def ask_server(pool: EndpointPool, endpoint: Endpoint, model: str) -> HeldWords | None:
    """What the server tells of its tokens; None if it tells nothing.

    Raises ServerFailed if it tells what cannot be.
    """
    for wire in _WIRES:
        tokenize = partial(_tokens, pool, endpoint, model, wire)
        try:
            ids = await tokenize(_PROBE)
        except EndpointRefused:  # another wire, or none
            continue
        detokenize = partial(_text, pool, endpoint, model, wire)
        if not ids:  # it looked for the text in another field
            continue
        if not (await detokenize(ids)).endswith(_PROBE.strip()):  # after a token that begins texts
            raise ServerFailed(
                f"{wire.tokenize}: answered tokens that are not those of the text it was sent"
            )
        return HeldWords(f"the server's {wire.tokenize}", tokenize, detokenize)
    return None


def ask_tokenizer(name: str, tokenizer: Any) -> HeldWords:
    """The same of a transformers tokenizer."""

    async def tokenize(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    async def detokenize(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids)))

    return HeldWords(f"the tokenizer {name}", tokenize, detokenize)


async def _tokens(
    pool: EndpointPool, endpoint: Endpoint, model: str, wire: _Wire, text: str
) -> list[int]:
    body = {"model": model, wire.field: text, **wire.more}
    return list((await pool.request(endpoint, wire.tokenize, Tokens, body)).tokens)


async def _text(
    pool: EndpointPool, endpoint: Endpoint, model: str, wire: _Wire, ids: Sequence[int]
) -> str:
    body = {"model": model, "tokens": list(ids)}
    said = (await pool.request(endpoint, wire.detokenize, Detokenized, body)).said
    if said is None:
        raise ServerFailed(f"{wire.detokenize}: answered no text")
    return said
