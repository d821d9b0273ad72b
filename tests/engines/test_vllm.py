"""The options and requests that the engine passes to vLLM; `tests/vllm` runs the real vLLM."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

import tide.engines.vllm
from tests.worlds import scripted_engine
from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.vllm import FirstToken, VllmEngine


def received(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """The arguments that vLLM's `AsyncEngineArgs` gets for these options."""
    got: dict[str, Any] = {}

    def arguments(*, model: str, **settings: Any) -> NoReturn:
        got.update(settings)
        raise AssertionError("far enough")

    platform = SimpleNamespace(is_cpu=lambda: True)
    stand_in = SimpleNamespace(AsyncEngineArgs=arguments, AsyncLLM=None, current_platform=platform)
    monkeypatch.setattr(tide.engines.vllm, "require", lambda *_: stand_in)
    with pytest.raises(EngineError, match=r"model pocket: loading failed: .*far enough"):
        VllmEngine("pocket", **options)
    return got


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"trust_remote_code": False}),
        ({"trust_remote_code": "no"}, {"trust_remote_code": False}),
        ({"enforce_eager": "FALSE", "load": "auto"}, {"enforce_eager": False, "load": "auto"}),
        ({"enforce_eager": "true"}, {"enforce_eager": True}),
    ],
)
def test_booleans_of_vllms_own(
    options: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code runs only where it is asked for."""
    assert received(monkeypatch, **options).items() >= expected.items()


def test_vllm_reports_its_use_only_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    received(monkeypatch)
    assert os.environ["VLLM_NO_USAGE_STATS"] == "0"
    monkeypatch.delenv("VLLM_NO_USAGE_STATS")
    received(monkeypatch)
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize("size", [None, 3])
def test_what_a_request_is_to_vllm(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    """Bans, the seed and the pieces are passed on; the token that ends the text is dropped."""
    got: list[Any] = []

    async def generate(prompt: Any, values: dict[str, Any], name: str) -> AsyncGenerator[Any, None]:
        got.append((prompt, values, name))
        for ids, reason in (([5, 6], None), ([7, 0], "stop")):
            output = SimpleNamespace(token_ids=ids, finish_reason=reason, stop_reason=None)
            yield SimpleNamespace(outputs=[output])

    kinds = SimpleNamespace(FINAL_ONLY="final", DELTA="delta")
    monkeypatch.setattr(
        tide.engines.vllm, "require", lambda *_: SimpleNamespace(RequestOutputKind=kinds)
    )
    engine = VllmEngine.__new__(VllmEngine)
    engine.name, engine.dtype, engine._numbers = "m", torch.float16, count()
    engine._vllm = SimpleNamespace(SamplingParams=dict)
    engine._engine = SimpleNamespace(generate=generate)
    sampling = Sampling(temperature=0.5, max_new_tokens=9, stop="x")
    requests = [
        Request([1, 2], sampling, 11, banned_token_ids=(3, 4), piece_tokens=size),
        Request(torch.zeros(2, 4), Sampling(temperature=0.0), 11, piece_tokens=size),
    ]

    async def write(request: Request) -> list[Piece]:
        return [piece async for piece in engine._write(request)]

    for request in requests:
        assert asyncio.run(write(request)) == [Piece((5, 6)), Piece((7,), "stop")]
    (first, values, _), (second, greedy, _) = got
    assert first == {"prompt_token_ids": [1, 2]}
    assert second["prompt_embeds"].dtype == torch.float16
    assert values["logit_bias"] == {3: -100.0, 4: -100.0}
    assert greedy["logit_bias"] is None
    assert (values["seed"], greedy["seed"]) == (11, None)
    assert (values["stop"], values["detokenize"], greedy["detokenize"]) == (["x"], True, False)
    assert values["output_kind"] == ("final" if size is None else "delta")
    assert values.get("stream_interval") == size
    assert len({name for *_, name in got}) == 2


@pytest.mark.parametrize(
    ("by_embeddings", "is_same"),
    [
        pytest.param([(5, -0.5), (9, -1.0)], True, id="equal"),
        pytest.param([(5, -0.6), (9, -0.9)], True, id="half precision"),
        pytest.param([(5, -0.5), (8, -1.03)], True, id="a tie"),
        pytest.param([(5, -0.5), (8, -1.2)], False, id="another token"),
        pytest.param([(5, -0.5), (9, -2.0)], False, id="another probability"),
        pytest.param([(5, -0.5), (9, math.nan)], False, id="NaN"),
    ],
)
def test_first_tokens_from_embeddings_are_those_from_ids(
    by_embeddings: list[tuple[int, float]], is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_tokens(self: VllmEngine, prompts: Sequence[Any]) -> list[FirstToken]:
        rows = by_embeddings if isinstance(prompts[0], torch.Tensor) else [(5, -0.5), (9, -1.0)]
        return [FirstToken(*row) for row in rows]

    scripted = scripted_engine()
    engine = VllmEngine.__new__(VllmEngine)
    engine.name = "m"
    for method in ("tokenize", "embed"):
        monkeypatch.setattr(engine, method, getattr(scripted, method))
    monkeypatch.setattr(VllmEngine, "_first_tokens", first_tokens)
    with nullcontext() if is_same else pytest.raises(EngineError, match="does it run another"):
        asyncio.run(engine._verify())
