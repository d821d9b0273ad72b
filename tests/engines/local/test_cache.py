"""The cache of running rows, and that of texts that are continued."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import Gemma2Config

from tests.models import _COMMON, _WIDTH, CONFIGS, save_causal_lm
from tide.core.settings import Sampling
from tide.engines.base import Completion, Request
from tide.engines.local.cache import KeyValueCache, Pair
from tide.engines.local.engine import TransformersEngine

# Gemma 2 with sliding windows that hold most of the prompts here, but not all.
WIDE = Gemma2Config(**_WIDTH, num_key_value_heads=2, head_dim=8, sliding_window=40, **_COMMON)
FURTHER = {"opt": pytest.mark.slow, "gpt_neox": pytest.mark.nightly, "qwen3": pytest.mark.nightly}


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(kind, marks=FURTHER.get(kind, ())) for kind in CONFIGS),
        pytest.param(WIDE, id="gemma2-wide"),
    ],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TransformersEngine:
    return TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), request.param))


def written(
    engine: TransformersEngine, ids: Sequence[int], tokens: int, handle: object, *others: Request
) -> Completion:
    sampling = Sampling(temperature=0.0, max_new_tokens=tokens, min_new_tokens=tokens)
    requests = [Request(ids, sampling, prefix_cache=handle), *others]
    return engine.portal.run(engine.complete, requests)[0]


def test_a_text_that_is_rewound_reads_its_last_token_alone(engine: TransformersEngine) -> None:
    """Also if the text is longer than a sliding window, and beside other rows."""
    ids = list(range(10, 40))
    handle = engine.prefix_cache()
    other = Request(list(range(50, 70)), Sampling(temperature=0.0, max_new_tokens=12))
    whole = written(engine, ids, 12, handle, other)
    assert whole.read_tokens == len(ids)
    for kept in (11, 8, 3, 5, 1):
        prompt = [*ids, *whole.token_ids[:kept]]
        rest = written(engine, prompt, 12 - kept, handle, other)
        fresh = written(engine, prompt, 12 - kept, None, other)
        assert (rest.read_tokens, fresh.read_tokens) == (1, len(prompt))
        assert rest.token_ids == fresh.token_ids == whole.token_ids[kept:]
    assert written(engine, [*ids, 7], 3, handle, other).read_tokens == 1
    assert written(engine, [*ids, 7, 8], 3, handle, other).read_tokens == 1
    assert written(engine, [*ids[:-1], 7, 8], 3, handle, other).read_tokens == len(ids) + 1


@pytest.fixture
def llama(tmp_path: Path) -> TransformersEngine:
    return TransformersEngine(save_causal_lm(tmp_path, "llama"), prefix_tokens=50)


def test_cached_texts_are_bounded_and_go_with_their_handles(llama: TransformersEngine) -> None:
    """Of three texts with 23 tokens, two fit into the cache, and the oldest is read again."""
    handles = [llama.prefix_cache() for _ in range(3)]
    prompts = [[start, *range(10, 28)] for start in (3, 4, 5)]
    for ids, handle in zip(prompts, handles, strict=True):
        assert written(llama, ids, 4, handle).read_tokens == 19
        written(llama, [5], 4, None)  # the ended row leaves
    for number, read in ((2, 1), (1, 1), (0, 19)):
        assert written(llama, prompts[number], 4, handles[number]).read_tokens == read
    kept = [weakref.ref(handle) for handle in handles]
    del handles, handle
    written(llama, [5], 4, None)
    end = time.monotonic() + 20  # the engine's thread may still hold rows that have ended
    while any(handle() is not None for handle in kept):
        gc.collect()
        assert time.monotonic() < end
        time.sleep(0.01)


# Running rows

LAYERS, HEADS, WIDTH = 2, 2, 3


def layer_states(rows: int, tokens: int) -> list[Pair]:
    """Keys and values of each layer."""
    states = torch.ones(rows, HEADS, tokens, WIDTH)
    return [(states, states)] * LAYERS


def test_the_store_does_not_grow_with_the_steps() -> None:
    """However many rows come and go, columns for the longest row and some spare ones suffice."""
    cache = KeyValueCache(8)
    for _ in range(30):
        cache.add([10], layer_states(1, 10))
        for _ in range(40):
            cache.step()
            pairs = layer_states(cache.padded_count, 1)
            for layer, pair in zip(cache.model_cache.layers, pairs, strict=True):
                layer.update(*pair)
            cache.end += 1
        if cache.count > 1:
            cache.select([1])
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
