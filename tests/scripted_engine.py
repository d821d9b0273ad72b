"""An engine whose completions come from a function."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from tide.core.chat import Chat, Rendered, as_lines, render
from tide.core.settings import derive_seed
from tide.engines.base import Engine, Piece, Prompt, Request

# A word with the spaces before it; the last word also takes the spaces after it.
_WORDS = re.compile(r"\s*\S+(?:\s+\Z)?|\s+")


class ScriptedEngine(Engine):
    """Completes each prompt with the text of `respond(embeddings, seed)`.

    respond: takes a float32 matrix (T, dim) and the sampling seed, and returns a text. The text is
    cut before a stop string and loses banned words, but is not cut to `max_new_tokens`. Tokens are
    words with the spaces before them; each word has one fixed random embedding. on_write: called
    with each request before its text is written; may be async and may raise. requests: all requests
    for which `on_write` did not raise.
    """

    capabilities: ClassVar = frozenset({"stop"})

    def __init__(
        self,
        respond: Callable[[Tensor, int], str],
        *,
        dim: int = 8,
        context_length: int | None = 128,
        max_batch: int = 16,
        on_write: Callable[[Request], Awaitable[None] | None] | None = None,
    ) -> None:
        self.name = "scripted"
        self.dim = dim
        self.dtype = torch.float32
        self.context_length = context_length
        self.max_batch = max_batch
        self.requests: list[Request] = []
        self.on_write = on_write
        self._respond = respond
        self._words: dict[str, int] = {}

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return [self._ids(prompt) for prompt in prompts]

    def _encode(self, text: str) -> Prompt:
        prompt = super()._encode(text)
        if not isinstance(text, Rendered):
            return prompt
        spans = text.spans_of(word.span() for word in re.finditer(r"\S+", text))
        return Prompt(str(text), prompt.token_ids, tuple(span != 0 for span in spans))

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        words = list(self._words)
        return ["".join(words[i] for i in ids) for ids in rows]

    def _vocabulary(self) -> Sequence[str]:
        return list(self._words)

    def _render(self, chat: Chat) -> Rendered:
        return render(chat, as_lines, self.name)

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        if self.on_write is not None and (waits := self.on_write(request)) is not None:
            await waits
        self.requests.append(request)
        prompt = request.prompt
        x = self._embed_tokens(prompt) if isinstance(prompt, Sequence) else prompt
        text = self._respond(x, request.seed)
        end = request.sampling.stop_in(text)
        banned = request.banned_token_ids
        ids = tuple(token_id for token_id in self._ids(text[:end]) if token_id not in banned)
        yield Piece(ids, "length" if end is None else "stop")

    def _embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        return torch.stack([self._row(i) for i in token_ids])

    def _ids(self, text: str) -> list[int]:
        return [self._id(word) for word in _WORDS.findall(text)]

    def _id(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))

    def _row(self, token_id: int) -> Tensor:
        return _embedding(list(self._words)[token_id].strip(), self.dim)


@cache
def _embedding(word: str, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed("word", word))
    return torch.randn(dim, generator=generator)
