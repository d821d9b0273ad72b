from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from tests.worlds import scripted_engine
from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines import Engine
from tide.engines.base import per_row
from tide.evaluation.caching_engine import CachingEngine


def calls_of_a_closed_engine(engine: Engine, x: Tensor) -> None:
    """Every method of the protocol raises the same error."""
    calls = {
        "tokenize": ([],),
        "embed": (["fine"],),
        "complete": ([x], Sampling(), [0]),
        "likelihood": ([[1]], [[2]]),
        "decode_nearest": (x,),
        "verify": (),
    }
    methods = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction)}
    assert set(calls) == {name for name in methods if name[0] != "_"} - {"close"}
    for name, arguments in calls.items():
        with pytest.raises(EngineError, match="closed; make a new one"):
            getattr(engine, name)(*arguments)


@pytest.mark.parametrize("shared", [False, True])
def test_a_closed_engine_says_so(shared: bool) -> None:
    engine: Engine = CachingEngine(scripted_engine()) if shared else scripted_engine()
    engine.complete([torch.zeros(1, 8)], Sampling(), [0])
    engine.close()
    calls_of_a_closed_engine(engine, torch.zeros(1, 8))
    engine.close()


def test_one_sampling_is_that_of_all_rows() -> None:
    one, two = Sampling(), Sampling(temperature=0)
    assert per_row(one, 3) == [one] * 3
    assert per_row([one, two], 2) == [one, two]
    assert per_row(one, 0) == per_row([], 0) == []
    with pytest.raises(EngineError, match="sampling: 2 for 3 rows"):
        per_row([one, two], 3)
