from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from tests.generated import examples
from tests.models import CONFIGS
from tide.engines.local.decode import Forward, cache_in
from tide.engines.local.kv_cache import OpenCache, Pair, PreallocatedLayer, join, joinable


def states(tokens: int, width: int = 8) -> torch.Tensor:
    return torch.randn(3, 2, tokens, width)


def with_room(layer: DynamicLayer, tokens: int) -> PreallocatedLayer:
    """What `join` makes of a cache with this one layer."""
    cache = DynamicCache()
    cache.layers.append(layer)
    return join([cache], [[0, 1, 2]], tokens).layers[0]


@pytest.mark.parametrize("room", [0, 1, 4, 20])
def test_equals_the_concatenating_layer_within_and_past_its_room(room: int) -> None:
    """Keys and values may differ in width, and several tokens may come at once."""
    plain = DynamicLayer()
    plain.update(states(5), states(5, 6))
    ours = with_room(plain, room)
    assert torch.equal(ours.keys, plain.keys)
    for tokens in (1, 1, 2, 1, 3):
        keys, values = states(tokens), states(tokens, 6)
        for got, expected in zip(
            ours.update(keys, values), plain.update(keys, values), strict=True
        ):
            assert torch.equal(got, expected)
        assert ours.get_seq_length() == plain.get_seq_length()
        assert ours.get_mask_sizes(1) == plain.get_mask_sizes(1)


def test_a_step_within_the_room_moves_nothing() -> None:
    layer = DynamicLayer()
    layer.update(states(5), states(5))
    layer = with_room(layer, 3)
    places = {layer.update(states(1), states(1))[0].data_ptr() for _ in range(3)}
    assert places == {layer.keys.data_ptr()}
    layer.update(states(1), states(1))
    assert layer.keys.data_ptr() not in places


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_models_go_on_from_it_as_from_their_own(kind: str) -> None:
    """Gemma 2 has a window of 16 in every other layer, and 20 tokens pass it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]()).eval().requires_grad_(False)
    ids = torch.randint(0, 300, (2, 28))
    forward = Forward(model)
    start = torch.arange(8).expand(2, -1)
    own, ours = (cache_in(forward(None, start, input_ids=ids[:, :8])) for _ in range(2))
    ours = join([ours], [[0, 1]], 10)  # room for fewer than come
    for i in range(8, 28):
        at = torch.full((2,), i)
        expected = forward.step(ids[:, i], at, own, None)
        torch.testing.assert_close(forward.step(ids[:, i], at, ours, None), expected)
    kinds = {type(layer) for layer in ours.layers}
    assert PreallocatedLayer in kinds
    assert (DynamicSlidingWindowLayer in kinds) == (kind == "gemma2")


def test_caches_of_other_shapes_are_left_alone() -> None:
    pairs = ((states(2), states(2)),)
    assert join([pairs], [[0, 1, 2]], 4) is pairs
    assert not joinable(pairs)
    empty = DynamicCache()
    assert join([empty], [[]], 4).layers == []
    assert not joinable(empty)


def test_joined_caches_are_left_padded() -> None:
    """Two prompts of 3 tokens (rows 0 and 2) and one of 5 (row 1)."""
    short, long = DynamicCache(), DynamicCache()
    for cache, tokens, rows in ((short, 3, 2), (long, 5, 1)):
        cache.update(torch.randn(rows, 2, tokens, 8), torch.randn(rows, 2, tokens, 6), 0)
    assert joinable(short)
    keys = [cache.layers[0].keys.clone() for cache in (short, long)]
    layer = join([short, long], [[0, 2], [1]], 4).layers[0]
    assert layer.keys.shape == (3, 2, 5, 8)
    assert layer.values.shape == (3, 2, 5, 6)
    assert torch.equal(layer.keys[[0, 2], :, 2:], keys[0])
    assert torch.equal(layer.keys[1], keys[1][0])
    assert not layer.keys[[0, 2], :, :2].any()


# An `OpenCache`, against a list of each row's own.

LAYERS, HEADS, WIDTH = 2, 2, 3
STEP = st.tuples(
    st.lists(st.integers(1, 90), max_size=9),
    st.sets(st.integers(0, 30), max_size=9),
    st.integers(0, 70),
)


def layer_states(rows: int, tokens: int, first: int) -> list[Pair]:
    """Keys and values of each layer, all of them different."""
    size = rows * HEADS * tokens * WIDTH
    parts = [
        torch.arange(size).view(rows, HEADS, tokens, WIDTH).float() + 1e-3 * first + 1e6 * i
        for i in range(2 * LAYERS)
    ]
    return [(parts[2 * i], parts[2 * i + 1]) for i in range(LAYERS)]


@given(steps=st.lists(STEP, min_size=1, max_size=6))
@examples(20, 300)
def test_every_row_keeps_its_own(steps: list[tuple[list[int], set[int], int]]) -> None:
    """Whoever enters, leaves or is written on; a row ends at the last column."""
    cache, number = OpenCache(), 0
    rows: list[list[Pair]] = []  # of each row and layer, (heads, tokens, width)

    def check() -> None:
        assert cache.count == len(rows)
        assert cache.shown >= cache.count
        for i, row in enumerate(rows):
            length = row[0][0].shape[1]
            assert cache.starts[i] == cache.end - length >= cache.low
            for pair, room in zip(row, cache.rooms, strict=True):
                for own, whole in zip(pair, room, strict=True):
                    assert torch.equal(whole[i, :, cache.starts[i] : cache.end], own)

    for lengths, leaving, writes in steps:
        gone = [i for i in sorted(leaving) if i < len(rows)]
        if gone:
            rows = [rows[i] for i in cache.leave(gone)]
            check()
        if lengths:
            slots = cache.make_room(lengths, layer_states(1, 1, 0))
            for slot, length in zip(slots, lengths, strict=True):
                number += 1
                parts = layer_states(1, length, number)
                cache.fill(parts, [slot])
                rows.append([(keys[0], values[0]) for keys, values in parts])
            check()
        for _ in range(writes if rows else 0):
            number += 1
            cache.step()
            new = layer_states(cache.shown, 1, number)
            for layer, (keys, values) in zip(cache.model_cache.layers, new, strict=True):
                seen: tuple[torch.Tensor, torch.Tensor] = layer.update(keys, values)
                assert seen[0].shape[2] == cache.end - cache.low + 1
            cache.stepped()
            for i, row in enumerate(rows):
                rows[i] = [
                    (torch.cat([a, b[i]], dim=1), torch.cat([c, d[i]], dim=1))
                    for (a, c), (b, d) in zip(row, new, strict=True)
                ]
        check()
    assert all(part.isfinite().all() for room in cache.rooms for part in room)
    cache.clear()
    assert cache.count == cache.columns == cache.end == 0


def test_the_room_does_not_grow_with_the_steps() -> None:
    """Rows that come and go need the columns of the longest one, and some to spare."""
    cache = OpenCache()
    for _ in range(30):
        cache.fill(layer_states(1, 10, 0), cache.make_room([10], layer_states(1, 1, 0)))
        for _ in range(40):
            cache.step()
            for layer, pair in zip(cache.model_cache.layers, layer_states(1, 1, 1), strict=True):
                layer.update(*(part.expand(cache.shown, -1, -1, -1) for part in pair))
            cache.stepped()
        if cache.count > 1:
            cache.leave([0])
    assert cache.columns < 200
    assert cache.rooms[0][0].shape[0] <= 8
