"""Room for the keys and values of the tokens to come, so that adding one copies one."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of a key-value cache that goes on from `layer`, with room for `tokens` more.

    DynamicLayer concatenates: it moves the whole cache to add one token. This layer writes into
    its room, and does as DynamicLayer once that is full, so `tokens` decides the speed alone.
    """

    def __init__(self, layer: DynamicLayer, tokens: int) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self._capacity = layer.get_seq_length() + tokens
        self._rooms = [_with_room(layer.keys, tokens), _with_room(layer.values, tokens)]
        self.keys, self.values = (room[..., : -tokens or None, :] for room in self._rooms)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if end > self._capacity:
            return super().update(key_states, value_states, *args, **kwargs)
        keys, values = self._rooms
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values


def _with_room(x: Tensor, tokens: int) -> Tensor:
    room = x.new_empty(*x.shape[:-2], x.shape[-2] + tokens, x.shape[-1])
    room[..., : x.shape[-2], :] = x
    return room


def preallocate(cache: Any, tokens: int) -> None:
    """Make room for `tokens` more in every layer of a model's own `cache` that only grows.

    Other layers (sliding windows, recurrent states), and caches that are not made of layers, stay
    the model's own.
    """
    layers = getattr(cache, "layers", [])
    for i, layer in enumerate(layers):
        # Exactly this type: a subclass keeps more than keys and values.
        if type(layer) is DynamicLayer and layer.is_initialized:
            layers[i] = PreallocatedLayer(layer, tokens)
