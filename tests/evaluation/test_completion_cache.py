from __future__ import annotations

from benchmarks.writing import completed

from tests.worlds import PROMPTS, scripted_engine
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.evaluation.completion_cache import CompletionCache


def test_what_follows_a_prompt_is_written_once_a_sampling_and_seed() -> None:
    engine = scripted_engine()
    engine.completion_cache = CompletionCache()
    one, two = (engine.encode(prompt).token_ids for prompt in PROMPTS[:2])
    short, long = Sampling(max_new_tokens=5), Sampling(max_new_tokens=9)
    first = completed(engine, [one, two], [short, long], [1, 1])
    assert len(engine.requests) == 2
    assert completed(engine, [two, one, one], [long, short, long], [1, 1, 1])[:2] == first[::-1]
    assert [(x.prompt, x.sampling) for x in engine.requests[2:]] == [(one, long)]
    assert completed(engine, [one, two], short, [1, 2])[:1] == first[:1]
    assert [(x.prompt, x.seed) for x in engine.requests[3:]] == [(two, 2)]


def test_moved_rows_and_texts_under_a_ban_are_written_each_time() -> None:
    engine = scripted_engine()
    cache = engine.completion_cache = CompletionCache()
    ids, sampling = engine.encode(PROMPTS[0]).token_ids, Sampling(max_new_tokens=5)
    rows = engine.embed_tokens(ids)
    banned = Request(ids, sampling, 1, banned_token_ids=(7,))
    for request in (Request(rows, sampling, 1), banned):
        before = len(engine.requests)
        first = engine.portal.run(engine.complete, [request])
        assert engine.portal.run(engine.complete, [request]) == first
        assert len(engine.requests) == before + 2
    assert cache.seconds_saved == 0
