"""Room for the keys and values of the tokens to come, so that adding one copies one.

Also joins the caches of prompts that were read in groups of similar length into one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer


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
                _room([getattr(layer, name) for layer in layers], groups, filled, tokens)
                for name in ("keys", "values")
            )
            joined.layers[i] = PreallocatedLayer(keys, values, filled)
    return joined


def _is_plain(layer: Any) -> bool:
    # Exactly this type: a subclass keeps more than keys and values.
    return type(layer) is DynamicLayer and layer.is_initialized


def _room(
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
