"""Key-value caches with room for the tokens to come, so that adding one copies one.

`join` makes one cache of those of prompts that were read in groups of similar length: the rows of
such a batch begin together. Those of an `OpenCache` enter and leave at any step. All of them end at
one column, where the next token of each is added:

    . . a a a a|        a row of four tokens
    . b b b b b|        one of five
    . . . . c c|        one that has just entered

Positions are in the keys already, so the column at which a row stands changes nothing. A row that
leaves is replaced by the last one, so that the rows under way stay the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

# Columns beyond those that are needed: so many steps are made before the rows are moved back.
_SPARE = 64
# Rows are made up to a multiple of this: oneDNN compiles for each number of them anew.
_MULTIPLE = 8
# Layers that keep keys and values and nothing else; the second only within its window.
_PLAIN = (DynamicLayer, DynamicSlidingWindowLayer)

# Keys and values of one layer.
Pair = tuple[Tensor, Tensor]


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of a key-value cache with room for tokens to come.

    DynamicLayer concatenates: it moves the whole cache to add one token. This layer writes into
    its room, and does as DynamicLayer once that is full, so the room decides the speed alone.

    keys, values: (B, heads, room, width), of which the first `filled` tokens are there already.
    """

    def __init__(self, keys: Tensor, values: Tensor, filled: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._rooms = keys, values
        self.keys, self.values = keys[..., :filled, :], values[..., :filled, :]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        keys, values = self._rooms
        if end > keys.shape[-2]:
            return super().update(key_states, value_states, *args, **kwargs)
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values


def joinable(cache: Any) -> bool:
    """Whether every layer of a model's own `cache` keeps keys and values and nothing else."""
    layers = getattr(cache, "layers", [])
    return bool(layers) and all(map(_is_plain, layers))


def join(caches: Sequence[Any], groups: Sequence[Sequence[int]], tokens: int) -> Any:
    """One cache for the rows of all `caches`, left-padded, with room for `tokens` more.

    groups: the rows of each cache in the joined one. Several caches must be `joinable`. Of a single
    one, layers that keep something else (sliding windows, recurrent states) stay the model's own.
    """
    joined = caches[0]
    for i, layer in enumerate(getattr(joined, "layers", [])):
        if _is_plain(layer):
            layers = [cache.layers[i] for cache in caches]
            filled = max(layer.keys.shape[-2] for layer in layers)
            keys, values = (
                _joined([getattr(layer, name) for layer in layers], groups, filled, tokens)
                for name in ("keys", "values")
            )
            joined.layers[i] = PreallocatedLayer(keys, values, filled)
    return joined


def _is_plain(layer: Any) -> bool:
    # Exactly this type: a subclass keeps more than keys and values.
    return type(layer) is DynamicLayer and layer.is_initialized


def _joined(
    parts: Sequence[Tensor], groups: Sequence[Sequence[int]], filled: int, tokens: int
) -> Tensor:
    _, heads, _, width = parts[0].shape
    room = parts[0].new_zeros(sum(map(len, groups)), heads, filled + tokens, width)
    for part, rows in zip(parts, groups, strict=True):
        put(part, room, row_index(rows), filled)
    return room


def row_index(rows: Sequence[int]) -> slice | list[int]:
    """These rows as an index: a slice if they follow one another, which is copied faster."""
    if list(rows) == list(range(rows[0], rows[-1] + 1)):  # as those sorted by length do
        return slice(rows[0], rows[-1] + 1)
    return list(rows)


def put(part: Tensor, room: Tensor, where: slice | list[int], filled: int) -> None:
    """Write keys or values (n, heads, T, width) into rows of the room, left of column `filled`.

    What stands before them must be finite already: masking does not remove NaN.
    """
    room[where, :, filled - part.shape[-2] : filled] = part


def longest_row(cache: Any) -> int:
    """The longest row that the layers of a model's own `cache` keep whole; 0 if they do not.

    Without a limit it is larger than any context.
    """
    layers = getattr(cache, "layers", [])
    if not layers or any(type(x) not in _PLAIN or not x.is_initialized for x in layers):
        return 0
    return int(min(getattr(layer, "sliding_window", None) or 1 << 62 for layer in layers))


class _RoomLayer(DynamicLayer):  # type: ignore[misc]
    """A layer whose keys and values are a part of a larger room, into which it writes."""

    def __init__(self, cache: OpenCache, room: Pair) -> None:
        super().__init__()
        self.lazy_initialization(*room)
        self._cache, self.room = cache, room
        self.show()

    def show(self) -> None:
        cache = self._cache
        rows, columns = slice(0, cache.shown), slice(cache.low, cache.end)
        self.keys, self.values = (part[rows, :, columns] for part in self.room)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        cache = self._cache
        end = cache.end + key_states.shape[-2]
        rows, columns = slice(0, cache.shown), slice(cache.end, end)
        for part, states in zip(self.room, (key_states, value_states), strict=True):
            part[rows, :, columns] = states
        columns = slice(cache.low, end)
        self.keys, self.values = (part[rows, :, columns] for part in self.room)
        return self.keys, self.values


class OpenCache:
    """A room for the keys and values of rows.

    count: rows under way. shown: those that the model is shown, with some that mean nothing: what
    is compiled for each number of rows costs more than to read these. low, end: the columns in
    which they stand. starts: the first column of each row, a list. model_cache: what a model's
    forward pass takes.
    """

    def __init__(self) -> None:
        self.count = self.low = self.end = 0
        self.starts: list[int] = []
        self.model_cache: Any = DynamicCache()
        self._slots = self._columns = 0

    @property
    def shown(self) -> int:
        return _made_up(self.count)

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return self._columns

    @property
    def rooms(self) -> list[Pair]:
        """Keys and values of each layer: (slots, heads, columns, width)."""
        return [layer.room for layer in self.model_cache.layers]

    def make_room(self, lengths: Sequence[int], like: Sequence[Pair]) -> range:
        """Slots for further rows of these lengths, which are then to be filled up to `end`.

        like: keys and values of each layer, whose heads, width, dtype and device the room has.
        """
        longest, slots = max(lengths), self.count + len(lengths)
        if self.count == 0:
            self.low = self.end = 0
        end = max(self.end - self.low, longest)
        if self.count == 0 or self.end < longest:
            self._move(end, slots, end + _SPARE, like)
        elif slots > self._slots:
            self._move(self.end, slots, self._columns, like)
        first, self.count = self.count, slots
        self.starts += [self.end - length for length in lengths]
        self._look()
        return range(first, slots)

    def fill(self, parts: Sequence[Pair], slots: Sequence[int]) -> None:
        """Write the keys and values (n, heads, T, width) of all layers into these rows."""
        for room, part in zip(self.rooms, parts, strict=True):
            for whole, states in zip(room, part, strict=True):
                put(states, whole, row_index(slots), self.end)

    def step(self) -> bool:
        """Have a column for the model's forward pass to write into; whether the rows were moved."""
        if self.end < self._columns:
            return False
        width = self.end - self.low
        self._move(width, self._slots, max(self._columns, width + _SPARE), self.rooms)
        self._look()
        return True

    def stepped(self) -> None:
        """It has written."""
        self.end += 1

    def wipe(self, row: int) -> None:
        """Let a row hold zeros."""
        for room in self.rooms:
            for part in room:
                part[row] = 0

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Let these rows go; returns the former numbers of the others, in their new order."""
        gone, count = set(rows), self.count - len(rows)
        order = list(range(count))
        holes = [row for row in range(count) if row in gone]
        movers = [row for row in range(count, self.count) if row not in gone]
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        if holes:
            columns = slice(self.low, self.end)
            to, of = torch.tensor(holes), torch.tensor(movers)
            for room in self.rooms:
                for part in room:
                    part[to, :, columns] = part[of, :, columns]
        self.starts, self.count = [self.starts[row] for row in order], count
        self._look()
        return order

    def clear(self) -> None:
        """Let go of the room."""
        self.__init__()  # type: ignore[misc]

    def _look(self) -> None:
        self.low = min(self.starts, default=self.end)
        for layer in self.model_cache.layers:
            layer.show()

    def _move(self, end: int, slots: int, columns: int, like: Sequence[Pair]) -> None:
        """Let the rows stand so that they end at column `end`, in a room of at least this size."""
        shift = end - self.end
        old, before = slice(self.low, self.end), self.rooms
        fits = before and slots <= self._slots and columns <= self._columns
        if not fits:
            if slots > self._slots:  # one by one, it would grow at every step
                self._slots = _made_up(max(slots, 2 * self._slots, _MULTIPLE))
            self._columns = max(self._columns, columns)
            shape = self._slots, self._columns
            self.model_cache = DynamicCache()
            # Zeros: what masking leaves out must be finite.
            rooms = [(_room(keys, *shape), _room(values, *shape)) for keys, values in like]
            self.model_cache.layers.extend(_RoomLayer(self, room) for room in rooms)
        new = slice(self.low + shift, end)
        if self.count:
            for room, source in zip(self.rooms, before, strict=True):
                for part, states in zip(room, source, strict=True):
                    held = states[: self.count, :, old]
                    part[: self.count, :, new] = held.clone() if fits else held
        self.low, self.end = self.low + shift, end
        self.starts = [start + shift for start in self.starts]


def _made_up(rows: int) -> int:
    return rows if rows <= _MULTIPLE else -(-rows // _MULTIPLE) * _MULTIPLE


def _room(like: Tensor, slots: int, columns: int) -> Tensor:
    _, heads, _, width = like.shape
    return like.new_zeros(slots, heads, columns, width)
