from __future__ import annotations

from benchmarks.writing import completed

from tests.worlds import PROMPTS, scripted_engine
from tide.core.settings import Sampling
from tide.evaluation.caching_engine import CachingEngine


def test_what_follows_a_prompt_is_written_once_a_sampling_and_seed() -> None:
    engine = scripted_engine()
    shared = CachingEngine(engine)
    one, two = (shared.encode(prompt).token_ids for prompt in PROMPTS[:2])
    short, long = Sampling(max_new_tokens=5), Sampling(max_new_tokens=9)
    first = completed(shared, [one, two], [short, long], [1, 1])
    assert len(engine.requests) == 2
    assert completed(shared, [two, one, one], [long, short, long], [1, 1, 1])[:2] == first[::-1]
    assert [(x.prompt, x.sampling) for x in engine.requests[2:]] == [(one, long)]
    assert completed(shared, [one, two], short, [1, 2])[:1] == first[:1]
    assert [(x.prompt, x.seed) for x in engine.requests[3:]] == [(two, 2)]


def test_moved_rows_and_tokens_that_are_no_prompt_are_written_each_time() -> None:
    engine = scripted_engine()
    shared = CachingEngine(engine)
    ids, sampling = shared.encode(PROMPTS[0]).token_ids, Sampling(max_new_tokens=5)
    rows = shared.embed_tokens(ids)
    for prompt in (rows, ids[:-1]):
        before = len(engine.requests)
        first = completed(shared, [prompt], sampling, [1])
        assert completed(shared, [prompt], sampling, [1]) == first
        assert len(engine.requests) == before + 2
    assert shared.seconds_saved == 0
