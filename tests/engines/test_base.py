from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worlds import scripted_engine
from tide.core.chat import Chat
from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines import Engine
from tide.engines.base import Request
from tide.evaluation.caching_engine import CachingEngine


def calls_of_a_closed_engine(engine: Engine, x: Tensor) -> None:
    """Every method that works with the model raises the same error."""
    calls: dict[str, tuple[Any, ...]] = {
        "tokenize": ([],),
        "encode": ("fine",),
        "texts": ([[1]],),
        "token_texts": ([[1]],),
        "render": (Chat.said("fine"),),
        "text_of": (Chat.said("fine"),),
        "embed": (["fine"],),
        "embed_tokens": ([1],),
        "decode_nearest": (x,),
        "share": (x,),
        "write": (Request(x),),
        "write_all": ([Request(x)],),
        "log_likelihoods": ([([1], [2])],),
        "score_all": ([Request([1, 2], scored=1)],),
        "complete": ([x], Sampling(), [0]),
        "likelihood": ([[1]], [[2]]),
        "verify": (),
    }
    methods = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction)}
    own = {"close", "check", "check_sampling", "completions", "fewest"}
    assert set(calls) == {name for name in methods if name[0] != "_"} - own
    for name, arguments in calls.items():
        with pytest.raises(EngineError, match="closed; make a new one"):
            asyncio.run(_whole(getattr(engine, name), *arguments))
    assert engine.closed
    assert not engine.available


async def _whole(call: Callable[..., Any], *arguments: Any) -> None:
    asked = call(*arguments)
    if inspect.isasyncgen(asked):
        async for _ in asked:
            pass
    else:
        await asked


@pytest.mark.parametrize("shared", [False, True])
def test_a_closed_engine_says_so(shared: bool) -> None:
    engine: Engine = CachingEngine(scripted_engine()) if shared else scripted_engine()
    engine.complete([torch.zeros(1, 8)], Sampling(), [0])
    engine.close()
    calls_of_a_closed_engine(engine, torch.zeros(1, 8))
    engine.close()
