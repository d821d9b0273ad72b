from __future__ import annotations

import gc
import weakref

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.engines.local.cache import KeyValueCache, Pair

# A `KeyValueCache` is compared with a list of each row's keys and values.

LAYERS, HEADS, WIDTH = 2, 2, 3
STEP = st.tuples(
    st.lists(st.integers(1, 90), max_size=9),
    st.sets(st.integers(0, 30), max_size=9),
    st.integers(0, 70),
)


def leave(cache: KeyValueCache, gone: list[int]) -> list[int]:
    order = cache.without(gone)
    cache.select(order)
    return order


def layer_states(rows: int, tokens: int, first: int) -> list[Pair]:
    """Keys and values of each layer, all different."""
    size = rows * HEADS * tokens * WIDTH
    parts = [
        torch.arange(size).view(rows, HEADS, tokens, WIDTH).float() + 1e-3 * first + 1e6 * i
        for i in range(2 * LAYERS)
    ]
    return [(parts[2 * i], parts[2 * i + 1]) for i in range(LAYERS)]


@given(steps=st.lists(STEP, min_size=1, max_size=6))
@examples(20, 300)
def test_every_row_keeps_its_own(steps: list[tuple[list[int], set[int], int]]) -> None:
    """Whichever rows enter, leave or grow; each ends at the last column."""
    cache, number = KeyValueCache(8), 0
    rows: list[list[Pair]] = []  # of each row and layer, (heads, tokens, width)

    def check() -> None:
        assert cache.count == len(rows)
        assert cache.padded_count >= cache.count
        for i, row in enumerate(rows):
            length = row[0][0].shape[1]
            assert cache.starts[i] == cache.end - length >= cache.low
            for pair, store in zip(row, cache.stores, strict=True):
                for own, whole in zip(pair, store, strict=True):
                    assert torch.equal(whole[i, :, cache.starts[i] : cache.end], own)

    for lengths, leaving, writes in steps:
        gone = [i for i in sorted(leaving) if i < len(rows)]
        if gone:
            rows = [rows[i] for i in leave(cache, gone)]
            check()
        if lengths:
            slots = cache.add(lengths, layer_states(1, 1, 0))
            for slot, length in zip(slots, lengths, strict=True):
                number += 1
                parts = layer_states(1, length, number)
                cache.fill(parts, [slot])
                rows.append([(keys[0], values[0]) for keys, values in parts])
            check()
        for _ in range(writes if rows else 0):
            number += 1
            cache.step()
            new = layer_states(cache.padded_count, 1, number)
            for layer, (keys, values) in zip(cache.model_cache.layers, new, strict=True):
                seen: tuple[torch.Tensor, torch.Tensor] = layer.update(keys, values)
                assert seen[0].shape[2] == cache.end - cache.low + 1
            cache.end += 1
            for i, row in enumerate(rows):
                rows[i] = [
                    (torch.cat([a, b[i]], dim=1), torch.cat([c, d[i]], dim=1))
                    for (a, c), (b, d) in zip(row, new, strict=True)
                ]
        check()
    assert all(part.isfinite().all() for store in cache.stores for part in store)


def test_the_store_does_not_grow_with_the_steps() -> None:
    """However many rows come and go, columns for the longest row and some spare ones suffice."""
    cache = KeyValueCache(8)
    for _ in range(30):
        cache.fill(layer_states(1, 10, 0), cache.add([10], layer_states(1, 1, 0)))
        for _ in range(40):
            cache.step()
            for layer, pair in zip(cache.model_cache.layers, layer_states(1, 1, 1), strict=True):
                layer.update(*(part.expand(cache.padded_count, -1, -1, -1) for part in pair))
            cache.end += 1
        if cache.count > 1:
            leave(cache, [0])
    assert cache.columns < 200
    assert cache.stores[0][0].shape[0] <= 8


def test_a_cache_is_freed_without_a_garbage_collection() -> None:
    """Collections are rare, and a baseline makes a cache of gigabytes for every few prompts."""
    cache = KeyValueCache()
    cache.add([3, 5], layer_states(2, 5, 0))
    keys = weakref.ref(cache.stores[0][0])
    gc.disable()
    try:
        del cache
        assert keys() is None
    finally:
        gc.enable()
