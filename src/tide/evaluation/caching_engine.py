"""An engine that writes the completions of an unmodified prompt once for all methods."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from torch import Tensor

from tide.core.chat import Chat, Rendered
from tide.core.concurrency import Portal
from tide.core.settings import Sampling
from tide.engines.base import Ban, Engine, Likelihood, Piece, Prompt, Request, TokenPair

_Key = tuple[tuple[int, ...], Sampling, int]


class CachingEngine(Engine):
    """Wraps an engine, and caches its completions of unmodified prompts.

    Every search begins with the model's own completion of the prompt, and its seed depends only on
    prompt and trial, so all methods of a comparison would generate the same base completions.
    `seconds_saved`: sum, over all cache hits, of the seconds that the completion took when it was
    generated. `SearchMethod` adds these seconds to the cost of the method that used the completion.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name, self.dim, self.dtype = engine.name, engine.dim, engine.dtype
        self.context_length, self.max_batch = engine.context_length, engine.max_batch
        self.capabilities = engine.capabilities  # type: ignore[misc]
        self.embedding_scale = engine.embedding_scale
        self.seconds_saved = 0.0
        self._prompts: set[tuple[int, ...]] = set()
        # The pieces of each completion, and the seconds that its generation took.
        self._written: dict[_Key, tuple[list[Piece], float]] = {}
        self._until = 0.0

    @property
    def portal(self) -> Portal:
        return self.engine.portal

    @property
    def available(self) -> bool:
        return self.engine.available

    @property
    def chat_sampling(self) -> Mapping[str, Any]:
        return self.engine.chat_sampling

    @property
    def has_embeddings(self) -> bool:
        return self.engine.has_embeddings

    @property
    def capability_notes(self) -> str:
        return self.engine.capability_notes

    def supports_continuation(self, prompt: Sequence[int]) -> bool:
        return self.engine.supports_continuation(prompt)

    def check(self, request: Request) -> None:
        self.engine.check(request)

    def check_sampling(self, sampling: Sampling) -> None:
        self.engine.check_sampling(sampling)

    def close(self) -> None:
        self.closed = True
        self._written.clear()
        self.engine.close()

    def _encode(self, text: str) -> Prompt:
        prompt = self.engine.encode(text)
        self._prompts.add(prompt.token_ids)
        return prompt

    def _tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return self.engine.tokenize(prompts)

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return self.engine.texts(rows)

    def _render(self, chat: Chat) -> Rendered:
        return self.engine.render(chat)

    def _embed_tokens(self, token_ids: Sequence[int]) -> Tensor:
        return self.engine.embed_tokens(token_ids)

    def _decode_nearest(self, embeddings: Tensor) -> list[int]:
        return self.engine.decode_nearest(embeddings)

    def _prefix_cache(self, rows: Tensor | None) -> object:
        return self.engine.prefix_cache(rows)

    def ban(self, token_ids: Sequence[int]) -> Ban:
        return self.engine.ban(token_ids)

    def _verify(self) -> None:
        self.engine.verify()

    async def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        key, started = self._key(request), time.perf_counter()
        if key in self._written:
            known, seconds = self._written[key]
            self.seconds_saved += seconds
            for piece in known:
                yield piece
            return
        given: list[Piece] = []
        async with aclosing(self.engine.write(request)) as pieces:
            async for piece in pieces:
                given.append(piece)
                if key is not None and piece.finish_reason is not None:
                    # Calls overlap; time before the previous completion ended is charged already.
                    now = time.perf_counter()
                    self._written[key] = given, now - max(started, self._until)
                    self._until = now
                yield piece

    async def _log_likelihoods(
        self, pairs: Sequence[TokenPair], prefix_cache: object
    ) -> list[Likelihood]:
        return await self.engine.log_likelihoods(pairs, prefix_cache=prefix_cache)

    def _key(self, request: Request) -> Any:
        """Return the cache key of a request, or None if the request is not cached."""
        prompt = request.prompt
        is_plain = not request.banned_token_ids and request.piece_tokens is None
        if not (is_plain and isinstance(prompt, Sequence)):
            return None
        ids = tuple(prompt)
        return (ids, request.sampling, request.seed) if ids in self._prompts else None
