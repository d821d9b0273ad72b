from __future__ import annotations

import gc
import weakref

import torch

from tide.engines.local.cache import KeyValueCache, Pair

LAYERS, HEADS, WIDTH = 2, 2, 3


def layer_states(rows: int, tokens: int) -> list[Pair]:
    """Keys and values of each layer."""
    states = torch.ones(rows, HEADS, tokens, WIDTH)
    return [(states, states)] * LAYERS


def test_the_store_does_not_grow_with_the_steps() -> None:
    """However many rows come and go, columns for the longest row and some spare ones suffice."""
    cache = KeyValueCache(8)
    for _ in range(30):
        cache.fill(layer_states(1, 10), cache.add([10], layer_states(1, 1)))
        for _ in range(40):
            cache.step()
            pairs = layer_states(cache.padded_count, 1)
            for layer, pair in zip(cache.model_cache.layers, pairs, strict=True):
                layer.update(*pair)
            cache.end += 1
        if cache.count > 1:
            cache.select(cache.without([0]))
    assert cache.columns < 200
    assert cache.stores[0][0].shape[0] <= 8


def test_a_cache_is_freed_without_a_garbage_collection() -> None:
    """Collections are rare, and a baseline makes a cache of gigabytes for every few prompts."""
    cache = KeyValueCache()
    cache.add([3, 5], layer_states(2, 5))
    keys = weakref.ref(cache.stores[0][0])
    gc.disable()
    try:
        del cache
        assert keys() is None
    finally:
        gc.enable()
