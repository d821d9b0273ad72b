"""Texts that are written bit by bit, on any engine that goes on from its own token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tide.core.seeds import derive_seed
from tide.core.settings import Sampling
from tide.engines.base import Writer, WritesOn, Written


def open_writer(
    engine: Any, embeddings: Sequence[Tensor], samplings: Sequence[Sampling], seeds: Sequence[int]
) -> Writer:
    """The engine's own writer, or one that asks it to complete what it has written so far."""
    if isinstance(engine, WritesOn):
        return engine.write(embeddings, samplings, seeds)
    return CompletingWriter(engine, embeddings, samplings, seeds)


class CompletingWriter:
    """Goes on by completing the prompt and all that was written, as token ids.

    For engines that read again what they know (vLLM with prefix caching reads little of it).
    Greedily it writes what one call would write; sampled, each part has a seed of its own.
    """

    def __init__(
        self,
        engine: Any,
        embeddings: Sequence[Tensor],
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
    ) -> None:
        self._engine = engine
        self._rows = [
            _Row(x, sampling, seed)
            for x, sampling, seed in zip(embeddings, samplings, seeds, strict=True)
        ]

    def advance(self, tokens: int) -> list[Written]:
        going = [row for row in self._rows if not row.ended]
        written = iter(
            self._engine.complete(
                [row.embeddings for row in going],
                [row.next_sampling(tokens) for row in going],
                [row.next_seed() for row in going],
            )
            if going
            else ()
        )
        found: list[Written] = []
        for row in self._rows:
            if row.ended:
                found.append(([], "stop"))
                continue
            completion = next(written)
            ids = list(completion.token_ids)
            row.count += len(ids)
            row.ended = completion.finish_reason == "stop" or row.left <= 0
            if ids and not row.ended:
                row.embeddings = torch.cat([row.embeddings, self._engine.embed_tokens(ids)])
            found.append((ids, completion.finish_reason if row.ended else None))
        return found

    def keep(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[i] for i in rows]


class _Row:
    def __init__(self, embeddings: Tensor, sampling: Sampling, seed: int) -> None:
        self.embeddings, self._sampling, self._seed = embeddings, sampling, seed
        self.count, self.ended = 0, False

    @property
    def left(self) -> int:
        return self._sampling.max_new_tokens - self.count

    def next_sampling(self, tokens: int) -> Sampling:
        # A stop string may lie across two parts: who reads the whole text finds it.
        most = min(tokens, self.left)
        least = min(max(0, self._sampling.min_new_tokens - self.count), most)
        part = {"max_new_tokens": most, "min_new_tokens": least, "stop": ()}
        return self._sampling.model_copy(update=part)

    def next_seed(self) -> int:
        return derive_seed(self._seed, self.count) if self.count else self._seed
