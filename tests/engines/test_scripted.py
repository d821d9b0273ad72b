from __future__ import annotations

import asyncio

from benchmarks.writing import completed, likelihoods

from tests.scripted_engine import ScriptedEngine
from tide.core.settings import Sampling
from tide.engines.base import Request

SAMPLING = Sampling(max_new_tokens=9)


def test_the_hook_is_called_with_each_request_before_it_is_written() -> None:
    order: list[object] = []
    engine = ScriptedEngine(lambda x, seed: (order.append(seed), "a text")[1])
    prompts = engine.tokenize(["one word", "and one more"])
    with engine:

        async def wait(request: Request) -> None:
            await asyncio.sleep(0)
            order.append(request)

        for hook in (order.append, wait):
            order.clear()
            engine.on_write = hook
            found = completed(engine, prompts, SAMPLING, [1, 2])
            assert [one.text for one in found] == ["a text"] * 2
            assert [one.read_tokens for one in found] == [2, 3]
            for request in engine.requests[-2:]:
                assert order.index(request) < order.index(request.seed)


def test_shorter_completions_are_likelier() -> None:
    with ScriptedEngine(lambda x, seed: "") as engine:
        assert likelihoods(engine, [[1], [1, 2]], [[3, 4], [5]]) == [-2.0, -1.0]
        assert engine.pairs == [([1], [3, 4]), ([1, 2], [5])]
