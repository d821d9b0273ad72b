"""An engine that writes the completions of an unmodified prompt once for all methods."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tide.core.chat import Chat
from tide.core.settings import Sampling
from tide.engines.base import (
    Completion,
    EmbeddedPrompt,
    Engine,
    GoesOn,
    KeepsPrefixes,
    Samplings,
    WritesOn,
    per_row,
    text_of,
)

_Key = tuple[bytes, Sampling, int]


@dataclass(frozen=True)
class _Written:
    completion: Completion
    seconds: float


class CachingEngine:
    """Any engine, remembering what it wrote after prompts as they are.

    Every search begins with the prompt's own completion, and seeds belong to prompt and trial, so
    the methods of a comparison would all write the same base completions. `seconds_saved` adds up
    what the remembered ones took when they were written, so that each method can be charged for its
    own.
    """

    def __init__(self, engine: Engine) -> None:
        self.name, self.dim, self.dtype = engine.name, engine.dim, engine.dtype
        self.context_length, self.max_batch = engine.context_length, engine.max_batch
        self.honours: set[str] = getattr(engine, "honours", set())
        self.embedding_scale = getattr(engine, "embedding_scale", 1.0)
        self.seconds_saved = 0.0
        self.engine = engine
        if isinstance(engine, GoesOn):
            self.embed_tokens, self.texts = engine.embed_tokens, engine.texts
        if isinstance(engine, WritesOn):
            self.write = engine.write
        self._prompts: set[bytes] = set()
        self._written: dict[_Key, _Written] = {}

    def embed(self, prompts: Sequence[str]) -> list[EmbeddedPrompt]:
        embedded = self.engine.embed(prompts)
        self._prompts.update(_digest(prompt.embeddings.to(self.dtype)) for prompt in embedded)
        return embedded

    def complete(
        self, embeddings: Sequence[Tensor], sampling: Samplings, seeds: Sequence[int]
    ) -> list[Completion]:
        samplings = per_row(sampling, len(embeddings))
        digests = [_digest(x.to(self.dtype)) for x in embeddings]
        keys = list(zip(digests, samplings, seeds, strict=True))
        new = [i for i, key in enumerate(keys) if key not in self._written]
        started = time.perf_counter()
        fresh = self.engine.complete(
            [embeddings[i] for i in new], [samplings[i] for i in new], [seeds[i] for i in new]
        )
        seconds = (time.perf_counter() - started) / max(1, len(new))
        completions = dict(zip(new, fresh, strict=True))
        for i, key in enumerate(keys):
            if i not in completions:
                completions[i] = self._written[key].completion
                self.seconds_saved += self._written[key].seconds
            elif digests[i] in self._prompts:
                self._written[key] = _Written(completions[i], seconds)
        return [completions[i] for i in range(len(keys))]

    def keep_prefix(self, rows: Tensor) -> object:
        return self.engine.keep_prefix(rows) if isinstance(self.engine, KeepsPrefixes) else None

    def tokenize(self, prompts: Sequence[str]) -> list[list[int]]:
        return self.engine.tokenize(prompts)

    def render(self, chat: Chat) -> str:
        return text_of(chat, self.engine)

    def likelihood(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        return self.engine.likelihood(prompts, completions)

    def decode_nearest(self, embeddings: Tensor) -> list[int]:
        return self.engine.decode_nearest(embeddings)

    def verify(self) -> None:
        self.engine.verify()

    def close(self) -> None:
        self._written.clear()
        self.engine.close()


def _digest(x: Tensor) -> bytes:
    numbers = x.float().contiguous().numpy().tobytes()
    return hashlib.blake2b(numbers, digest_size=16).digest()
