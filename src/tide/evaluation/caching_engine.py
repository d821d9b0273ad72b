"""An engine that writes the completions of an unmodified prompt once for all methods."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tide.core.chat import Chat, Rendered
from tide.core.concurrency import Portal
from tide.core.settings import Sampling
from tide.engines.base import Ban, Completion, Engine, Piece, Prompt, Request

_Key = tuple[tuple[int, ...], Sampling, int]


@dataclass(frozen=True)
class _Written:
    completion: Completion
    seconds: float


class CachingEngine(Engine):
    """Any engine, remembering what it wrote after prompts as they are.

    Every search begins with the prompt's own completion, and seeds belong to prompt and trial, so
    the methods of a comparison would all write the same base completions. `seconds_saved` adds up
    what the remembered ones took when they were written, so that each method can be charged for its
    own.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name, self.dim, self.dtype = engine.name, engine.dim, engine.dtype
        self.context_length, self.max_batch = engine.context_length, engine.max_batch
        self.honours = engine.honours  # type: ignore[misc]
        self.embedding_scale = engine.embedding_scale
        self.seconds_saved = 0.0
        self._prompts: set[tuple[int, ...]] = set()
        self._written: dict[_Key, _Written] = {}
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
    def abilities(self) -> str:
        return self.engine.abilities

    def goes_on(self, prompt: Sequence[int]) -> bool:
        return self.engine.goes_on(prompt)

    def check(self, request: Request) -> None:
        self.engine.check(request)

    def check_sampling(self, sampling: Sampling) -> None:
        self.engine.check_sampling(sampling)

    def close(self) -> None:
        self._closed = True
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

    def _share(self, rows: Tensor) -> object:
        return self.engine.share(rows)

    def _memory(self) -> object:
        return self.engine.memory()

    def ban(self, token_ids: Sequence[int]) -> Ban:
        return self.engine.ban(token_ids)

    def _verify(self) -> None:
        self.engine.verify()

    def _write(self, request: Request) -> AsyncGenerator[Piece, None]:
        return self.engine.write(request)

    async def _score_all(self, requests: Sequence[Request]) -> list[float]:
        return await self.engine.score_all(requests)

    async def _write_all(self, requests: Sequence[Request]) -> list[Completion]:
        keys = [self._key(request) for request in requests]
        new = [i for i, key in enumerate(keys) if key not in self._written]
        started = time.perf_counter()
        fresh = await self.engine.write_all([requests[i] for i in new]) if new else []
        # Calls overlap: each is charged for what no other was before.
        now = time.perf_counter()
        seconds = (now - max(started, self._until)) / max(1, len(new))
        self._until = now if new else self._until
        completions = dict(zip(new, fresh, strict=True))
        for i, key in enumerate(keys):
            if i not in completions:
                assert key is not None
                completions[i] = self._written[key].completion
                self.seconds_saved += self._written[key].seconds
            elif key is not None:
                self._written[key] = _Written(completions[i], seconds)
        return [completions[i] for i in range(len(keys))]

    def _key(self, request: Request) -> Any:
        """None for what is not remembered."""
        prompt = request.prompt
        if not isinstance(prompt, Sequence) or request.never:
            return None
        ids = tuple(prompt)
        return (ids, request.sampling, request.seed) if ids in self._prompts else None
