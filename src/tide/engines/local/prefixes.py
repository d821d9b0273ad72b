"""KV caches, kept while they may be needed: shared prefixes and generated text.

A search that perturbs the last tokens of a prompt completes many candidates with a common prefix,
whose keys and values are computed once and copied. A text regenerated from some position on reuses
the prefix before it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from weakref import WeakSet

import torch
from torch import Tensor

from tide.engines.local.decode import Forward, cache_in
from tide.engines.local.kv_cache import Pair

# Reading fewer rows again costs no more than another call: see padding.py.
LEAST = 64


@dataclass(eq=False)
class Beginning:
    """What was read of the beginnings of some requests; kept for as long as this lives.

    rows: embeddings (P, d) that prompts begin with; None for token ids, which change. layers: of
    each layer, keys and values (1, heads, n, width) of the first n tokens; None while not kept.
    """

    rows: Tensor | None = None
    ids: list[int] = field(default_factory=list)
    layers: list[Pair] | None = None
    used: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values are kept."""
        return 0 if self.layers is None else self.layers[0][0].shape[-2]

    def begins(self, x: Tensor) -> bool:
        """Whether (T, d) `x` begins with the rows, bit for bit, and goes on."""
        rows = self.rows
        if rows is None or len(x) <= len(rows) or (x.dtype, x.device) != (rows.dtype, rows.device):
            return False
        # One row tells most prompts apart.
        return torch.equal(x[len(rows) - 1], rows[-1]) and torch.equal(x[: len(rows)], rows)

    def reaches(self, ids: Sequence[int]) -> bool:
        """Whether it holds all of `ids` but the last."""
        before = len(ids) - 1
        return 0 < before <= self.tokens and self.ids[:before] == list(ids[:before])


@dataclass(eq=False)
class Handle:
    """What requests carry. counted: whether the beginning was counted as read for one of them."""

    beginning: Beginning
    counted: bool = False


class PrefixCache:
    """What was read of the beginnings of requests that are under way.

    capacity: in tokens; those used longest ago are evicted. 0: nothing is kept. `handle` works from
    any thread, the rest belongs to the one that runs the model. tokens_read: by the model, so far.
    """

    def __init__(self, forward: Forward, capacity: int) -> None:
        self._forward, self._capacity = forward, capacity
        self._beginnings: WeakSet[Beginning] = WeakSet()
        self._lock = threading.Lock()
        self._clock = count(1)
        self.tokens_read = 0

    def handle(self, rows: Tensor | None) -> Handle | None:
        """For requests that begin with these rows; without rows, that extend each other."""
        if not self._capacity or (rows is not None and len(rows) < LEAST):
            return None
        with self._lock:
            for known in self._beginnings:
                if rows is not None and known.rows is not None and torch.equal(known.rows, rows):
                    return Handle(known)
            self._beginnings.add(beginning := Beginning(rows))
            return Handle(beginning)

    def keep(self, beginning: Beginning, ids: list[int], layers: list[Pair]) -> None:
        """Keep what was read of these ids."""
        beginning.ids, beginning.layers = ids, layers
        beginning.used = next(self._clock)
        self._evict()

    def layers(self, beginning: Beginning, like: Tensor) -> list[Pair]:
        """Keys and values of rows, read if they are not kept.

        like: a tensor of the device and dtype of the model.
        """
        assert beginning.rows is not None
        beginning.used = next(self._clock)
        if beginning.layers is None:
            out = self._forward.read([beginning.rows.to(like.device, like.dtype)])
            beginning.layers = [(layer.keys, layer.values) for layer in cache_in(out).layers]
            self.tokens_read += len(beginning.rows)
        layers = beginning.layers
        self._evict()
        return layers

    def _evict(self) -> None:
        """Drop what was used longest ago, beyond the capacity."""
        with self._lock:
            known = list(self._beginnings)
        if sum(one.tokens for one in known) <= self._capacity:
            return
        kept = 0
        for one in sorted(known, key=lambda one: -one.used):
            kept += one.tokens
            if kept > self._capacity:
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
