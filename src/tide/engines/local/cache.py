"""Caches for keys and values of running rows, and of texts that later rows continue.

The rows of a `KeyValueCache` enter and leave at any step. All rows end at one column, where the
next token of each row is added:

    . . a a a a|        a row of four tokens
    . b b b b b|        a row of five tokens
    . . . . c c|        a row that has just entered

The keys already contain the positions, so the column of a row does not matter. The last row takes
the place of a row that leaves, so that running rows fill the first slots without gaps.

A rewound text continues from its cached keys and values. The `PrefixCache` holds these texts.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

# Number of spare columns, and so of steps until the rows have to be moved.
_SPARE = 64

# Keys and values of one layer.
Pair = tuple[Tensor, Tensor]


class _Layer(DynamicLayer):  # type: ignore[misc]
    """A layer that writes keys and values in place, into a store with spare columns.

    DynamicLayer concatenates: it copies the whole cache to add one token.
    """

    def __init__(self, cache: KeyValueCache, like: Pair, slots: int, columns: int) -> None:
        super().__init__()
        self.lazy_initialization(*like)
        # A reference cycle would keep the memory of an old cache until the next garbage collection.
        self._cache = weakref.proxy(cache)
        keys, values = like
        # The store begins with zeros, since masked values must be finite.
        self.store = (
            keys.new_zeros(slots, keys.shape[1], columns, keys.shape[3]),
            values.new_zeros(slots, values.shape[1], columns, values.shape[3]),
        )

    def show(self, end: int) -> None:
        rows, columns = slice(0, self._cache.padded_count), slice(self._cache.low, end)
        keys, values = self.store
        self.keys, self.values = keys[rows, :, columns], values[rows, :, columns]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        cache = self._cache
        end = cache.end + key_states.shape[-2]
        rows, columns = slice(0, cache.padded_count), slice(cache.end, end)
        for part, states in zip(self.store, (key_states, value_states), strict=True):
            part[rows, :, columns] = states
        self.show(end)
        return self.keys, self.values


class KeyValueCache:
    """The keys and values of running rows, with capacity for further tokens.

    count: number of running rows. padded_count: number of rows passed to the model; dummy rows make
    any number above `multiple` a multiple of it. low, end: the columns in use. columns: number of
    columns. starts: first column of each row. model_cache: argument of the model's forward pass.
    stores: keys and values of each layer, (slots, heads, columns, width).
    """

    def __init__(self, multiple: int = 1) -> None:
        self._multiple = multiple
        self.count = self.padded_count = self.low = self.end = self.columns = 0
        self.starts: list[int] = []
        self.model_cache: Any = DynamicCache()
        self.stores: list[Pair] = []
        self._slots = 0

    def add(self, lengths: Sequence[int], layers: Sequence[Pair]) -> None:
        """Append rows of these lengths, with their keys and values (n, heads, T, width)."""
        longest, slots = max(lengths), self.count + len(lengths)
        if self.count == 0:
            self.low = self.end = 0
        end = max(self.end - self.low, longest)
        if self.count == 0 or self.end < longest:
            self._move(end, slots, end + _SPARE, layers)
        elif slots > self._slots:
            self._move(self.end, slots, self.columns, layers)
        for store, pair in zip(self.stores, layers, strict=True):
            for whole, states in zip(store, pair, strict=True):
                whole[self.count : slots, :, self.end - longest : self.end] = states
        self.count = slots
        self.starts += [self.end - length for length in lengths]
        self._show()

    def copy(self, row: int) -> list[Pair]:
        """Copy the keys and values of one row, (1, heads, T, width) for each layer."""
        columns = slice(self.starts[row], self.end)
        rows = slice(row, row + 1)
        return [(k[rows, :, columns].clone(), v[rows, :, columns].clone()) for k, v in self.stores]

    def step(self) -> bool:
        """Prepare a column for the next forward pass; returns whether the rows were moved."""
        if self.end < self.columns:
            return False
        width = self.end - self.low
        self._move(width, self._slots, max(self.columns, width + _SPARE), self.stores)
        self._show()
        return True

    def wipe(self, row: int) -> None:
        """Set a leaving row to zero, since masking would not remove its NaN."""
        for store in self.stores:
            for part in store:
                part[row] = 0

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may occur several times."""
        if len(rows) > self._slots:
            self._move(self.end, len(rows), self.columns, self.stores)
        moved = [(to, of) for to, of in enumerate(rows) if to != of]
        if moved and self.stores:
            to, of = torch.tensor(moved, device=self.stores[0][0].device).T
            columns = slice(self.low, self.end)
            for store in self.stores:
                for part in store:
                    part[to, :, columns] = part[of, :, columns]
        self.starts, self.count = [self.starts[row] for row in rows], len(rows)
        self._show()

    def _show(self) -> None:
        """Pass the rows and columns that are in use to the model."""
        self.padded_count = self._padded(self.count)
        self.low = min(self.starts, default=self.end)
        for layer in self.model_cache.layers:
            layer.show(self.end)

    def _move(self, end: int, slots: int, columns: int, like: Sequence[Pair]) -> None:
        """Move the rows so that they end at column `end`, in a store of at least this size.

        like: keys and values of each layer, as patterns of heads, width, dtype and device.
        """
        shift = end - self.end
        old, before = slice(self.low, self.end), self.stores
        fits = before and slots <= self._slots and columns <= self.columns
        if not fits:
            if slots > self._slots:  # doubling avoids a new store for every new row
                slots = self._padded(max(slots, 2 * self._slots, self._multiple))
            size = max(slots, self._slots), max(self.columns, columns)
            # If memory runs out here, the running rows still need the old store.
            layers = [_Layer(self, pair, *size) for pair in like]
            self._slots, self.columns = size
            self.model_cache = DynamicCache()
            self.model_cache.layers.extend(layers)
            self.stores = [layer.store for layer in layers]
        target = slice(self.low + shift, end)
        if self.count:
            moves = [
                (part[: self.count, :, target], states[: self.count, :, old])
                for store, source in zip(self.stores, before, strict=True)
                for part, states in zip(store, source, strict=True)
            ]
            # A row may overlap its new place. All buffers are allocated before any row moves.
            spare = {moved.shape: torch.empty_like(moved) for _, moved in moves} if fits else {}
            for part, moved in moves:
                part.copy_(spare[moved.shape].copy_(moved) if fits else moved)
        self.low, self.end = self.low + shift, end
        self.starts = [start + shift for start in self.starts]

    def _padded(self, rows: int) -> int:
        size = self._multiple
        return rows if rows <= size else -(-rows // size) * size


@dataclass(eq=False)
class Beginning:
    """A text that requests continue, cached as long as this object exists.

    layers: keys and values (1, heads, n, width) of the first n of `ids` for each layer; None if not
    cached.
    """

    cache: PrefixCache
    ids: list[int] = field(default_factory=list)
    layers: list[Pair] | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens whose keys and values are cached."""
        return 0 if self.layers is None else self.layers[0][0].shape[-2]

    def before_last(self, ids: Sequence[int]) -> list[Pair] | None:
        """Return the cached keys and values of `ids` without the last id, or None."""
        size = len(ids) - 1
        if self.layers is None or not 0 < size <= self.tokens or self.ids[:size] != list(ids[:-1]):
            return None
        return [(keys[:, :, :size], values[:, :, :size]) for keys, values in self.layers]


class PrefixCache:
    """Cached texts of running requests.

    capacity: maximum number of cached tokens, beyond which the texts that were cached first are
    evicted. Its methods must be called in the engine's event loop.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._beginnings: weakref.WeakKeyDictionary[Beginning, None] = weakref.WeakKeyDictionary()

    def keep(self, beginning: Beginning, ids: list[int], layers: list[Pair]) -> None:
        """Cache keys and values of these ids, and drop those of the first texts over the capacity.

        beginning: the text with these ids; it is evicted after all others.
        """
        beginning.ids, beginning.layers = ids, layers
        self._beginnings.pop(beginning, None)
        self._beginnings[beginning] = None
        tokens = 0
        for cached in reversed(list(self._beginnings)):
            tokens += cached.tokens
            if tokens > self.capacity:
                cached.layers = None
