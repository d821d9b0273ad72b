"""Completions and likelihoods of prompts that share their beginning equal those read alone."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tide.runtime.job import Job
from torch import Tensor
from transformers import Gemma2Config

from tests.generated import examples
from tests.models import _COMMON, _WIDTH, CONFIGS, CONTEXT, save_causal_lm
from tide import Detoxifier
from tide.core.settings import Sampling
from tide.engines.base import KeepsPrefixes
from tide.engines.local import prefixes
from tide.engines.local.decode import Forward
from tide.engines.local.engine import TransformersEngine
from tide.search import load_strategy
from tide.search.settings import resolve_settings

LEAST = 6
LONG = "The weather today is fine and the people of this quiet town are kind. " * 6
# Gemma 2 whose sliding windows hold most prompts here, but not all.
KINDS = {
    **CONFIGS,
    "gemma2-wide": lambda: Gemma2Config(
        **_WIDTH, num_key_value_heads=2, head_dim=8, sliding_window=40, **_COMMON
    ),
}


@pytest.fixture(scope="module", params=list(KINDS))
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TransformersEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "LEAST", LEAST)
        patch.setitem(CONFIGS, "gemma2-wide", KINDS["gemma2-wide"])
        yield TransformersEngine(save_causal_lm(tmp_path_factory.mktemp("lm"), request.param))


def moved(engine: TransformersEngine, ids: list[int], last: int, count: int) -> list[Tensor]:
    """The prompt, and `count` more with its last rows moved."""
    x = engine._embed_ids(ids).float()
    generator = torch.Generator().manual_seed(len(ids))
    noise = 0.3 * torch.randn(count, last, engine.dim, generator=generator)
    return [x, *(torch.cat([x[:-last], x[-last:] + by * x.std()]) for by in noise)]


def reading_all(engine: TransformersEngine) -> TransformersEngine:
    """The same engine, which shares nothing."""
    plain = copy.copy(engine)
    plain._prefixes = prefixes.Prefixes(engine._forward, 0, engine.dtype, engine.device)
    return plain


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
@examples(30, 150)
def test_sharing_changes_nothing(
    engine: TransformersEngine,
    prompts: list[tuple[list[int], int, int]],
    sampling: list[Sampling],
    max_batch: int,
    bound: int,
) -> None:
    """Any splits, several prompts of any lengths, under any bound, once read and read again."""
    shares = copy.copy(engine)
    shares._prefixes = prefixes.Prefixes(engine._forward, bound, engine.dtype, engine.device)
    shares.max_batch, plain = max_batch, reading_all(engine)
    rows, held = [], []
    for ids, most, count in prompts:
        last = min(most, len(ids) - 1)
        rows += moved(engine, ids, last, count)
        held.append(shares.keep_prefix(rows[-1][:-last]))
    # Neighbours in a batch are of other prompts, and write more or less.
    rows = rows[::2] + rows[1::2]
    each = [sampling[i % len(sampling)] for i in range(len(rows))]
    expected = plain.complete(rows, each, range(len(rows)))
    pairs = [ids for ids, *_ in prompts], [ids[: 1 + i] for i, (ids, *_) in enumerate(prompts)]
    for _ in range(2):
        assert shares.complete(rows, each, range(len(rows))) == expected
        assert shares.likelihood(*pairs) == pytest.approx(plain.likelihood(*pairs), abs=1e-4)
    kept = [prefix for prefix in shares._prefixes._held if prefix.layers is not None]
    assert sum(len(prefix.rows) for prefix in kept) <= bound


def test_which_models_share(engine: TransformersEngine, request: pytest.FixtureRequest) -> None:
    """All of these but for windows that are shorter than the prompt."""
    kind = request.node.callspec.params["engine"]
    (x, *_) = moved(engine, [*range(3, 33)], 3, 0)
    held = engine.keep_prefix(x[:-3])
    short, long = engine._prefixes.of([x, x], [10, 11])
    assert (short, long) == (None, None) if kind == "gemma2" else short is held is not None
    assert (long is None) == kind.startswith("gemma2")


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TransformersEngine:
    monkeypatch.setattr(prefixes, "LEAST", LEAST)
    return TransformersEngine(save_causal_lm(tmp_path, "llama"), prefix_tokens=50)


def test_each_token_is_counted_once(llama: TransformersEngine) -> None:
    rows = moved(llama, [*range(10, 40)], 4, 2)
    sampling = Sampling(temperature=0.0, max_new_tokens=5)

    def reads(*arguments: Any, call: Any = llama.complete) -> int:
        before = llama.forward_tokens
        answer = call(*arguments)
        written = sum(len(c.token_ids) - (c.finish_reason == "length") for c in answer)
        return llama.forward_tokens - before - written

    assert reads(rows, sampling, [0, 1, 2]) == 3 * 30
    held = llama.keep_prefix(rows[0][:-4])
    assert held is not None
    assert reads(rows, sampling, [0, 1, 2]) == 26 + 3 * 4
    assert reads(rows, sampling, [0, 1, 2]) == 3 * 4
    before = llama.forward_tokens
    llama.likelihood([[*range(10, 40)]] * 2, [[5, 6], [7]])
    assert llama.forward_tokens - before == 2 * 4 + 3


def test_what_is_kept_is_bounded_and_goes_with_who_asked(llama: TransformersEngine) -> None:
    prompts = [[start, *range(10, 32)] for start in (3, 4, 5)]
    rows = [moved(llama, ids, 3, 1) for ids in prompts]
    held = [llama.keep_prefix(some[0][:-3]) for some in rows]
    for some in rows:
        llama.complete(some, Sampling(), [0, 1])
    assert [prefix.layers is not None for prefix in held] == [False, True, True]  # type: ignore[attr-defined]
    assert llama.keep_prefix(rows[0][0][:-3]) is held[0]
    llama.complete(rows[0], Sampling(), [0, 1])
    assert [prefix.layers is not None for prefix in held] == [True, False, True]  # type: ignore[attr-defined]
    del held
    assert len(llama._prefixes) == 0
    assert llama._prefixes.of(rows[0], [0, 0]) == [None, None]


def test_only_equal_rows_are_shared(llama: TransformersEngine) -> None:
    x, other = moved(llama, [*range(10, 40)], 4, 1)
    held = llama.keep_prefix(x[:-4])
    longer = llama.keep_prefix(x[:-2])
    nearly = x.clone()
    nearly[9, 3] += 1e-6
    found = llama._prefixes.of([x, other, nearly, x[:-4], x[:-3], x.double()], [0] * 6)
    assert found == [longer, held, None, None, held, None]
    assert llama.keep_prefix(x[: LEAST - 1]) is None


def test_a_model_that_ignores_the_mask_does_not_share(llama: TransformersEngine) -> None:
    class Deaf(Forward):
        def __call__(self, mask: Tensor | None, positions: Tensor, **inputs: Any) -> Any:
            return super().__call__(None, positions, **inputs)

    deaf = prefixes.Prefixes(Deaf(llama.model), 50, llama.dtype, llama.device)
    assert deaf.hold(moved(llama, [*range(10, 40)], 4, 0)[0]) is None


# Searches


class Strict:
    """A scorer that accepts nothing in the first calls. held: prefixes alive in each call."""

    name, threshold = "strict", 0.5

    def __init__(self, engine: TransformersEngine, calls: int = 4) -> None:
        self.engine, self.calls = engine, calls
        self.held: list[int] = []

    def score(self, texts: list[str]) -> list[float]:
        self.held.append(len(self.engine._prefixes))
        return [float(len(self.held) <= self.calls)] * len(texts)

    def close(self) -> None:
        pass


OPTIONS: dict[str, Any] = {"preset": "fast", "temperature": 0.0, "perturb": "last:8"}


def test_searches_share_and_find_the_same() -> None:
    prompts = [LONG, "Rain. " + LONG, "short", LONG]
    found = []
    for tokens in (0, 1 << 15):
        engine = TransformersEngine("pocket", prefix_tokens=tokens)
        assert isinstance(engine, KeepsPrefixes)
        scorer = Strict(engine)
        results = [*Detoxifier(engine, scorer=scorer, num_trials=2, **OPTIONS).map(prompts)]
        found.append(
            [[(e.text, e.toxicity) for e in trial.trace] for r in results for trial in r.trials]
        )
        assert max(scorer.held) == (2 if tokens else 0)
        assert len(engine._prefixes) == 0
    assert found[0] == found[1]


def test_a_search_that_is_given_up_keeps_nothing() -> None:
    engine = TransformersEngine("pocket")
    settings = resolve_settings({"perturb": "last:8"})
    for end in (Job.cancel, lambda job: job.fail(ValueError())):
        job = Job(0, LONG, settings, load_strategy("tide"))
        searches = job.work(engine.embed([LONG])[0], engine)
        engine.complete([searches[0].strategy.ask()[0].embeddings], Sampling(), [0])  # type: ignore[index]
        assert len(engine._prefixes) == 1
        end(job)
        assert len(engine._prefixes) == 0
    results = Detoxifier(engine, scorer=Strict(engine, 99), **OPTIONS).map([LONG] * 3)
    next(results)
    results.close()  # type: ignore[attr-defined]
    del results
    gc.collect()
    assert len(engine._prefixes) == 0


def test_prompts_that_leave_no_room_for_sharing_are_read_whole(llama: TransformersEngine) -> None:
    """One that fills the context, and one whose rows are all moved."""
    sampling = Sampling(temperature=0.0, max_new_tokens=4)
    for size, last in ((CONTEXT - 4, 3), (LEAST, LEAST)):
        rows = moved(llama, [*range(10, 10 + size)], last, 2)
        held = llama.keep_prefix(rows[0][:-last])
        assert llama.complete(rows, sampling, [0] * 3) == reading_all(llama).complete(
            rows, sampling, [0] * 3
        )
        del held
