from __future__ import annotations

from tests.worlds import PROMPTS, scripted_engine
from tide.core.settings import Sampling
from tide.evaluation.caching_engine import CachingEngine


def test_what_follows_a_prompt_is_written_once_a_sampling_and_seed() -> None:
    engine = scripted_engine()
    shared = CachingEngine(engine)
    one, two = (prompt.embeddings for prompt in shared.embed(PROMPTS[:2]))
    short, long = Sampling(max_new_tokens=5), Sampling(max_new_tokens=9)
    first = shared.complete([one, two], [short, long], [1, 1])
    assert shared.complete([two, one, one], [long, short, long], [1, 1, 1])[:2] == first[::-1]
    assert shared.complete([one, 2 * one], short, [1, 2])[:1] == first[:1]
    assert engine.calls == [2, 1, 1]
