from __future__ import annotations

from contextvars import Context
from dataclasses import replace
from typing import Any

from benchmarks.writing import completed

from tests.worlds import PROMPTS, scripted_engine
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.evaluation.completion_cache import CompletionCache


def test_what_follows_a_prompt_is_written_once_a_sampling_and_seed() -> None:
    engine = scripted_engine()
    one, two = (engine.encode(prompt).token_ids for prompt in PROMPTS[:2])
    short, long = Sampling(max_new_tokens=5), Sampling(max_new_tokens=9)
    with CompletionCache(engine):
        first = completed(engine, [one, two], [short, long], [1, 1])
        assert len(engine.requests) == 2
        again = completed(engine, [two, one, one], [long, short, long], [1, 1, 1])
        assert again[:2] == first[::-1]
        assert [(x.prompt, x.sampling) for x in engine.requests[2:]] == [(one, long)]
        assert completed(engine, [one, two], short, [1, 2])[:1] == first[:1]
        assert [(x.prompt, x.seed) for x in engine.requests[3:]] == [(two, 2)]


def test_what_depends_on_more_than_ids_and_seed_is_written_each_time() -> None:
    engine = scripted_engine()
    ids, sampling = engine.encode(PROMPTS[0]).token_ids, Sampling(max_new_tokens=5)
    own = Request(ids, sampling, 1)
    others: list[dict[str, Any]] = [
        {"prompt": engine.embed_tokens(ids)},
        {"banned_token_ids": (7,)},
        {"prefix_cache": object()},
    ]
    with CompletionCache(engine) as cache:
        for other in others:
            request, before = replace(own, **other), len(engine.requests)
            first = engine.portal.run(engine.complete, [request])
            assert engine.portal.run(engine.complete, [request]) == first
            assert len(engine.requests) == before + 2
    assert cache.seconds_saved == 0


def test_a_cache_serves_its_own_engine_and_its_own_caller() -> None:
    engine, other = scripted_engine(), scripted_engine()
    ids, _ = (one.encode(PROMPTS[0]).token_ids for one in (engine, other))
    request = Request(ids, Sampling(max_new_tokens=5), 1)
    with CompletionCache(engine):
        for one in (engine, other, engine, other):
            one.portal.run(one.complete, [request])
        assert (len(engine.requests), len(other.requests)) == (1, 2)
        Context().run(engine.portal.run, engine.complete, [request])  # another caller
        assert len(engine.requests) == 2
    engine.portal.run(engine.complete, [request])
    assert len(engine.requests) == 3
