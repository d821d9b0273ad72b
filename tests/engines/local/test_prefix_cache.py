"""Prompts that share a beginning get the same completions as alone."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.writing import completed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import Gemma2Config

from tests.generated import examples
from tests.models import _COMMON, _WIDTH, CONFIGS, CONTEXT, save_causal_lm
from tide import Detoxifier
from tide.core.settings import Sampling
from tide.engines.base import Completion, Request
from tide.engines.local import cache
from tide.engines.local.cache import PrefixCache
from tide.engines.local.engine import TransformersEngine, reads_alike
from tide.engines.local.stream import Forward

LEAST = 6
LONG = "The weather today is fine and the people of this quiet town are kind. " * 6
# Gemma 2 with sliding windows that hold most of the prompts here, but not all.
KINDS = {
    **CONFIGS,
    "gemma2-wide": lambda: Gemma2Config(
        **_WIDTH, num_key_value_heads=2, head_dim=8, sliding_window=40, **_COMMON
    ),
}


FURTHER = {
    "opt": pytest.mark.slow,
    "gpt_neox": pytest.mark.nightly,
    "qwen3": pytest.mark.nightly,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=FURTHER.get(kind, ())) for kind in KINDS],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TransformersEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "LEAST", LEAST)
        patch.setitem(CONFIGS, "gemma2-wide", KINDS["gemma2-wide"])
        yield TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), request.param))


def moved(engine: TransformersEngine, ids: list[int], last: int, count: int) -> list[Tensor]:
    """The prompt, and `count` copies with its `last` rows moved."""
    x = engine._embed_ids(ids).float().cpu()
    generator = torch.Generator().manual_seed(len(ids))
    noise = 0.3 * torch.randn(count, last, engine.dim, generator=generator)
    return [x, *(torch.cat([x[:-last], x[-last:] + by * x.std()]) for by in noise)]


def asked(
    engine: TransformersEngine,
    rows: Sequence[Tensor],
    samplings: Sequence[Sampling],
    held: Sequence[object],
) -> list[Completion]:
    """The completion of each row. held: the handle of each row's beginning."""
    requests = [
        Request(x, own, seed, priority=seed, prefix_cache=prefix)
        for seed, (x, own, prefix) in enumerate(zip(rows, samplings, held, strict=True))
    ]
    return asyncio.run(engine.complete(requests))


def check_forgotten(engine: TransformersEngine) -> None:
    """Wait until nothing is kept: the engine's thread may still hold rows that have ended."""
    end = time.monotonic() + 20
    while engine._cached:
        gc.collect()
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def bounds(engine: TransformersEngine, tokens: int, max_batch: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._cached, "_capacity", tokens)
        patch.setattr(engine._batch, "_max_batch", max_batch)
        yield


@given(
    prompts=st.lists(
        st.tuples(
            st.lists(st.integers(3, 299), min_size=LEAST + 1, max_size=44),
            st.integers(1, 8),
            st.integers(0, 5),
        ),
        min_size=1,
        max_size=5,
    ),
    sampling=st.lists(
        st.builds(
            Sampling,
            temperature=st.sampled_from([0.0, 0.1, 1.0]),
            max_new_tokens=st.integers(1, 12),
            top_p=st.sampled_from([1.0, 0.9]),
        ),
        min_size=1,
        max_size=4,
    ),
    max_batch=st.sampled_from([4, 64]),
    bound=st.sampled_from([1, 60, 1 << 15]),
)
@pytest.mark.attack
@examples(8, 150)
def test_sharing_changes_nothing(
    engine: TransformersEngine,
    prompts: list[tuple[list[int], int, int]],
    sampling: list[Sampling],
    max_batch: int,
    bound: int,
) -> None:
    """With any splits, prompts of any lengths and any bound; read once, and read again."""
    rows: list[tuple[Tensor, object]] = []
    with bounds(engine, bound, max_batch):
        for ids, most, count in prompts:
            last = min(most, len(ids) - 1)
            some = moved(engine, ids, last, count)
            held = engine.prefix_cache(some[-1][:-last])
            assert held is None or bound  # `test_which_models_share` tests which models do
            rows += [(x, held) for x in some]
        # Neighbours in a batch belong to different prompts, and have different lengths.
        rows = rows[::2] + rows[1::2]
        each = [sampling[i % len(sampling)] for i in range(len(rows))]
        xs, all_held = [x for x, _ in rows], [held for _, held in rows]
        expected = asked(engine, xs, each, [None] * len(rows))
        for _ in range(2):
            assert asked(engine, xs, each, all_held) == expected
        kept = [prefix for prefix in engine._cached._beginnings if prefix.layers is not None]
        assert sum(len(prefix.rows) for prefix in kept) <= bound


def test_which_models_share(engine: TransformersEngine) -> None:
    """All models here, whatever the windows of their layers."""
    (x, *_) = moved(engine, [*range(3, 33)], 3, 0)
    held = engine.prefix_cache(x[:-3])
    (written,) = asked(engine, [x], [Sampling(max_new_tokens=4)], [held])
    assert [written] == completed(engine, [x], Sampling(max_new_tokens=4), [0])
    assert held is not None
    assert held.beginning.layers is not None  # type: ignore[attr-defined]
    (x, *_) = moved(engine, [*range(3, 43)], 3, 0)
    held = engine.prefix_cache(x[:-3])
    asked(engine, [x], [Sampling(max_new_tokens=4)], [held])
    assert held.beginning.layers is not None  # type: ignore[attr-defined,union-attr]


def test_a_text_that_is_rewound_reads_its_last_token_alone(engine: TransformersEngine) -> None:
    """Also if the text is longer than a sliding window, and beside other rows."""
    ids = list(range(10, 40))
    own = Sampling(temperature=0.0, max_new_tokens=12, min_new_tokens=12)
    handle, other = engine.prefix_cache(), Request(list(range(50, 70)), own)

    def written(prompt: Sequence[int], tokens: int, handle: object) -> Completion:
        sampling = own.model_copy(update={"max_new_tokens": tokens, "min_new_tokens": tokens})
        asked = [Request(prompt, sampling, prefix_cache=handle), other]
        return engine.portal.run(engine.complete, asked)[0]

    whole = written(ids, 12, handle)
    assert whole.read_tokens == len(ids)
    for kept in (11, 8, 3, 5, 1):
        prompt = [*ids, *whole.token_ids[:kept]]
        rest, fresh = written(prompt, 12 - kept, handle), written(prompt, 12 - kept, None)
        assert (rest.read_tokens, fresh.read_tokens) == (1, len(prompt))
        assert rest.token_ids == fresh.token_ids == whole.token_ids[kept:]
    assert written([*ids, 7], 3, handle).read_tokens == 1
    assert written([*ids, 7, 8], 3, handle).read_tokens == 1
    assert written([*ids[:-1], 7, 8], 3, handle).read_tokens == len(ids) + 1


def test_a_beginning_that_is_shared_counts_once_for_each_who_shares(
    engine: TransformersEngine,
) -> None:
    """A search's read tokens do not depend on other searches: each counts the beginning once."""
    rows = moved(engine, [*range(10, 40)], 4, 2)
    own = [Sampling(temperature=0.0, max_new_tokens=2)] * 3
    for handle in [engine.prefix_cache(rows[0][:-4]) for _ in range(2)]:
        counts = [one.read_tokens for one in asked(engine, rows, own, [handle] * 3)]
        assert sorted(counts) == [4, 4, 30]


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TransformersEngine:
    monkeypatch.setattr(cache, "LEAST", LEAST)
    return TransformersEngine(save_causal_lm(tmp_path, "llama"), prefix_tokens=50)


def test_each_token_is_counted_once(llama: TransformersEngine) -> None:
    rows = moved(llama, [*range(10, 40)], 4, 2)
    sampling = Sampling(temperature=0.0, max_new_tokens=5)

    def reads(held: object) -> int:
        before = llama.forward_tokens
        answer = asked(llama, rows, [sampling] * 3, [held] * 3)
        written = sum(len(c.token_ids) - (c.finish_reason == "length") for c in answer)
        return llama.forward_tokens - before - written

    assert reads(None) == 3 * 30
    held = llama.prefix_cache(rows[0][:-4])
    assert held is not None
    assert reads(held) == 26 + 3 * 4
    assert reads(held) == 3 * 4


def test_what_is_kept_is_bounded_and_goes_with_who_asked(llama: TransformersEngine) -> None:
    prompts = [[start, *range(10, 32)] for start in (3, 4, 5)]
    rows = [moved(llama, ids, 3, 1) for ids in prompts]
    held = [llama.prefix_cache(some[0][:-3]) for some in rows]
    for some, one in zip(rows, held, strict=True):
        asked(llama, some, [Sampling()] * 2, [one] * 2)
    assert [prefix.beginning.layers is not None for prefix in held] == [False, True, True]  # type: ignore[union-attr]
    assert llama.prefix_cache(rows[0][0][:-3]).beginning is held[0].beginning  # type: ignore[attr-defined,union-attr]
    asked(llama, rows[0], [Sampling()] * 2, held[:1] * 2)
    assert [prefix.beginning.layers is not None for prefix in held] == [True, False, True]  # type: ignore[union-attr]
    del held, one
    check_forgotten(llama)


def test_a_request_with_another_prompts_prefix_is_read_whole(llama: TransformersEngine) -> None:
    """Also with the handle of a whole prompt, or with an object that is no handle."""
    x, _ = moved(llama, [*range(10, 40)], 4, 1)
    (wrong, _) = moved(llama, [*range(11, 41)], 4, 1)
    own = [Sampling(temperature=0.0, max_new_tokens=5)]
    expected = asked(llama, [x], own, [None])
    for held in (llama.prefix_cache(wrong[:-4]), llama.prefix_cache(x), "nonsense"):
        before = llama.forward_tokens
        assert asked(llama, [x], own, [held]) == expected
        assert llama.forward_tokens - before >= 30


def test_a_model_that_ignores_the_mask_neither_shares_nor_opens_its_batch(
    llama: TransformersEngine,
) -> None:
    class Deaf(Forward):
        def __call__(self, mask: Tensor | None, positions: Tensor, *cache: Any, **x: Any) -> Any:
            return super().__call__(None, positions, *cache, **x)

    x = moved(llama, [*range(10, 40)], 4, 0)[0].to(llama.device)
    assert reads_alike(Forward(llama.model), x)
    assert not reads_alike(Deaf(llama.model), x)
    assert PrefixCache(llama._read_rows, 0).handle(x) is None


def test_prompts_that_leave_no_room_for_sharing_are_read_whole(llama: TransformersEngine) -> None:
    """A prompt that fills the context, and a prompt whose rows are all moved."""
    sampling = [Sampling(temperature=0.0, max_new_tokens=4)] * 3
    for size, last in ((CONTEXT - 4, 3), (LEAST, LEAST)):
        rows = moved(llama, [*range(10, 10 + size)], last, 2)
        held = [llama.prefix_cache(rows[0][:-last])] * 3
        assert asked(llama, rows, sampling, held) == asked(llama, rows, sampling, [None] * 3)


# Searches


class Strict:
    """A scorer that accepts nothing in the first calls. held: prefixes alive in each call."""

    name, threshold = "strict", 0.5

    def __init__(self, engine: TransformersEngine, calls: int = 4) -> None:
        self.engine, self.calls = engine, calls
        self.held: list[int] = []

    def score(self, texts: list[str]) -> list[float]:
        self.held.append(len(self.engine._cached))
        return [float(len(self.held) <= self.calls)] * len(texts)

    def close(self) -> None:
        pass


OPTIONS: dict[str, Any] = {
    "strategy": "tide",
    "temperature": 0.0,
    "perturb": "last:8",
    "min_new_tokens": 4,
}


@pytest.mark.slow
def test_searches_share_and_find_the_same() -> None:
    prompts = [LONG, "Rain. " + LONG, "short", LONG]
    found, read = [], []
    for tokens in (0, 1 << 15):
        engine = TransformersEngine("pocket", prefix_tokens=tokens)
        scorer = Strict(engine, 99)
        results = [*Detoxifier(engine, scorer=scorer, num_trials=2, **OPTIONS).map(prompts)]
        found.append(
            [[(e.text, e.toxicity) for e in trial.trace] for r in results for trial in r.trials]
        )
        assert max(scorer.held) == (2 if tokens else 0)
        check_forgotten(engine)
        read.append(engine.forward_tokens)
    assert found[0] == found[1]
    assert read[1] < read[0] / 2


def test_a_search_that_is_given_up_keeps_nothing() -> None:
    engine = TransformersEngine("pocket")
    scorer = Strict(engine, 99)
    results = Detoxifier(engine, scorer=scorer, **OPTIONS).map([LONG] * 3)
    next(results)
    assert max(scorer.held) == 1
    results.close()  # type: ignore[attr-defined]
    del results
    check_forgotten(engine)
