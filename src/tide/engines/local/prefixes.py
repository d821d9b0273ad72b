"""KV caches, kept while they may be needed: shared prefixes and generated text.

A search that perturbs the last tokens of a prompt completes many candidates with a common prefix,
whose keys and values are computed once and copied. A text regenerated from some position on reuses
the prefix before it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from weakref import WeakSet

import torch
from torch import Tensor

from tide.engines.local.decode import Forward, cache_in
from tide.engines.local.kv_cache import Pair

# Reading fewer rows again costs no more than another call: see padding.py.
LEAST = 64


@dataclass
class Meter:
    """tokens: how many the model has read so far."""

    tokens: int = 0


class Prefix:
    """Rows (P, d) that prompts begin with. What was read of them is kept for as long as this lives.

    layers: keys and values of each layer, (1, heads, P, width); None while they are not kept.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.layers: list[Pair] | None = None
        self.used = 0

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values are kept."""
        return 0 if self.layers is None else len(self.rows)

    def begins(self, x: Tensor) -> bool:
        """Whether (T, d) `x` begins with these rows, bit for bit, and goes on."""
        size = len(self.rows)
        if len(x) <= size or (x.dtype, x.device) != (self.rows.dtype, self.rows.device):
            return False
        # One row tells most prompts apart.
        return torch.equal(x[size - 1], self.rows[-1]) and torch.equal(x[:size], self.rows)


class RequestCache:
    """What was read of a request: its token ids, and the keys and values of most of them.

    layers: of each layer, (heads, n, width) for the first n of `ids`; None while nothing is kept.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.layers: list[Pair] | None = None
        self.used = 0

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values are kept."""
        return 0 if self.layers is None else self.layers[0][0].shape[-2]

    def reaches(self, ids: Sequence[int]) -> bool:
        """Whether it holds all of `ids` but the last."""
        before = len(ids) - 1
        return 0 < before <= self.tokens and self.ids[:before] == list(ids[:before])


class Prefixes:
    """The prefixes of the searches that are under way, and the memories.

    tokens: capacity of the cache between calls, least recently used dropped first; 0: no cache.
    `hold` and `memory` work from any thread, the rest belongs to the one that runs the model.
    """

    def __init__(self, forward: Forward, tokens: int) -> None:
        self._forward, self._tokens = forward, tokens
        self._held: WeakSet[Prefix] = WeakSet()
        self._memories: WeakSet[RequestCache] = WeakSet()
        self._lock = threading.Lock()
        self._clock = count(1)
        self.meter = Meter()

    def hold(self, rows: Tensor) -> Prefix | None:
        """A handle for these (P, d) prefix rows; None where sharing does not pay."""
        if len(rows) < LEAST or not self._tokens:
            return None
        with self._lock:
            for held in self._held:
                if len(held.rows) == len(rows) and torch.equal(held.rows, rows):
                    return held
            self._held.add(prefix := Prefix(rows))
            return prefix

    def memory(self) -> RequestCache | None:
        """For what will be read of a request; None where nothing is kept."""
        if not self._tokens:
            return None
        with self._lock:
            self._memories.add(memory := RequestCache())
        return memory

    def remember(self, memory: RequestCache, ids: list[int], layers: list[Pair]) -> None:
        """Keep what was read of these ids."""
        memory.ids, memory.layers = ids, layers
        memory.used = next(self._clock)
        self._drop()

    def layers(self, prefix: Prefix, like: Tensor) -> list[Pair]:
        """Its keys and values, read if they are not kept; those used longest ago are dropped.

        like: a tensor of the device and dtype of the model.
        """
        prefix.used = next(self._clock)
        if prefix.layers is None:
            out = self._forward.read([prefix.rows.to(like.device, like.dtype)])
            prefix.layers = [(layer.keys, layer.values) for layer in cache_in(out).layers]
            self.meter.tokens += len(prefix.rows)
        layers = prefix.layers
        self._drop()
        return layers

    def _drop(self) -> None:
        """Evict the least recently used entries over capacity."""
        with self._lock:
            held: list[Prefix | RequestCache] = [*self._held, *self._memories]
        if sum(one.tokens for one in held) <= self._tokens:
            return
        kept = 0
        for one in sorted(held, key=lambda one: -one.used):
            kept += one.tokens
            if kept > self._tokens:
                one.layers = None


def cached_suffix(
    forward: Forward, layers: Sequence[Pair], suffixes: Tensor, keep: int = 1
) -> tuple[Tensor, list[Pair]]:
    """Read `suffixes` (n, k, d) of rows that begin with what `layers` has read.

    Returns the logits (n, keep, V) of their last tokens, and the keys and values of the whole rows.
    """
    rows, tokens, _ = suffixes.shape
    before = layers[0][0].shape[-2]
    shape = rows, -1, -1, -1
    cache = forward.cache_of(
        [(keys.expand(shape), values.expand(shape)) for keys, values in layers]
    )
    positions = torch.arange(before, before + tokens, device=suffixes.device).expand(rows, -1)
    kept = {"logits_to_keep": keep} if forward.accepts("logits_to_keep") else {}
    out = forward(None, positions, cache, inputs_embeds=suffixes, **kept)
    logits: Tensor = out.logits[:, -keep:]
    return logits, [(layer.keys, layer.values) for layer in cache_in(out).layers]
