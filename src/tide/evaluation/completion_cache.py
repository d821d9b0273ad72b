"""Completions that all methods of an evaluation share, and that are written once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Self

from tide.core.settings import Sampling
from tide.engines.base import COMPLETION_CACHE, Engine, Piece, Request

_Key = tuple[tuple[int, ...], Sampling, int]


class CompletionCache:
    """Keeps the completions of token ids that `engine` writes for this caller, inside `with`.

    Every search begins with the model's own completion of the prompt, and its seed depends only on
    prompt and trial, so all methods of a comparison would generate the same base completions.
    `seconds_saved`: sum, over all cache hits, of the seconds that the completion took when it was
    generated. `SearchMethod` adds these seconds to the cost of the method that used the completion.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seconds_saved = 0.0
        # The pieces of each completion, and the seconds that its generation took.
        self._written: dict[_Key, tuple[list[Piece], float]] = {}
        self._until = 0.0

    def __enter__(self) -> Self:
        self._before = COMPLETION_CACHE.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        COMPLETION_CACHE.reset(self._before)

    async def write(
        self, write: Callable[[Request], AsyncGenerator[Piece, None]], request: Request
    ) -> AsyncGenerator[Piece, None]:
        """Do what the engine's `write` does, or repeat what it did for an equal request."""
        key, started = _key(request), time.perf_counter()
        if key in self._written:
            known, seconds = self._written[key]
            self.seconds_saved += seconds
            for piece in known:
                yield piece
            return
        written: list[Piece] = []
        async with aclosing(write(request)) as pieces:
            async for piece in pieces:
                written.append(piece)
                if key is not None and piece.finish_reason is not None:
                    # Calls overlap; time before the previous completion ended is charged already.
                    now = time.perf_counter()
                    self._written[key] = written, now - max(started, self._until)
                    self._until = now
                yield piece


def _key(request: Request) -> _Key | None:
    """Return the cache key of a request, or None if the request is not cached.

    A moved prompt is hardly written twice, and neither is a text that is scored while it grows. The
    number of tokens that are read for a request with a prefix cache depends on other requests.
    """
    prompt, caches = request.prompt, request.prefix_cache is not None
    more = caches or request.banned_token_ids or request.piece_tokens
    if more or not isinstance(prompt, Sequence):
        return None
    return tuple(prompt), request.sampling, request.seed
