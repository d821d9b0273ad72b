"""A bad server that answers anything, and a good one: results are valid, from either server."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from benchmarks.writing import completed, likelihoods
from hypothesis import HealthCheck, given, settings

from tests.generated import examples
from tests.hostile import KEY, answers, network, said
from tide.core.errors import EngineError
from tide.core.settings import Sampling
from tide.engines.remote.engine import RemoteEngine

Make = Callable[[Any], httpx.Response]
_T = TypeVar("_T")
GREEDY = Sampling(temperature=0.0, max_new_tokens=2)
GOOD, BAD = "http://good.test", "http://bad.test"
WROTE = {"good.test": [5, 6], "bad.test": [7, 8]}
LOG_PROBS = {"good.test": -1.0, "bad.test": -2.0}
PROMPT, COMPLETION = [1, 2], [40, 41]
pytestmark = pytest.mark.attack
ALL = settings(examples(100, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture])


def right(request: httpx.Request) -> Any:
    """The answer of a well-behaved server; the two servers write different tokens."""
    if request.url.path == "/version":
        return {"version": "0.32.0"}
    if request.url.path == "/v1/models":
        return {"data": [{"id": "served", "root": None, "max_model_len": 256}]}
    body = json.loads(request.content)
    choices: list[Any] = []
    for i, _ in enumerate(body.get("prompt_embeds") or body["prompt"]):
        ids = WROTE[request.url.host][: body["max_tokens"]]
        choices.append({"index": i, "text": "x", "finish_reason": "length", "token_ids": ids})
        value = LOG_PROBS[request.url.host]
        if body.get("logprobs") is not None:
            choices[-1]["logprobs"] = {"token_logprobs": [value]}
        if body.get("prompt_logprobs") is not None:
            rest = body["prompt"][i][1:]
            choices[-1]["prompt_logprobs"] = [None, *({str(t): {"logprob": value}} for t in rest)]
    return {"choices": choices}


class World:
    """make: changes the bad server's answers. meant: the valid content of each changed answer."""

    def __init__(self) -> None:
        self.make: Make = lambda answer: httpx.Response(200, json=answer)
        self.meant: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.host in WROTE  # no redirect is followed
        if request.url.host == "good.test":
            return httpx.Response(200, stream=httpx.ByteStream(json.dumps(right(request)).encode()))
        response = self.make(right(request))
        self.meant.append(said(response))
        return response


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World()
    with network(world):
        yield world


@pytest.fixture(scope="module")
def engine(world: World) -> Iterator[RemoteEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_API_KEY", KEY)
        world.make = lambda answer: httpx.Response(
            200, stream=httpx.ByteStream(json.dumps(answer).encode())
        )
        engine = RemoteEngine("pocket", base_urls=[BAD, GOOD], deadline=20.0)
    # A server out of the pool is not probed in the background; the tests do it themselves.
    patch.setattr(engine.pool, "_leave", lambda endpoint: setattr(endpoint, "available", False))
    yield engine
    engine.close()


def begin(engine: RemoteEngine, world: World, make: Make) -> None:
    """Put both servers into the pool; the bad one gets the first request."""
    world.make, world.meant = make, []
    for endpoint in engine.pool.endpoints:
        endpoint.available, endpoint.rests_until, endpoint.reason = True, 0.0, "in use"


def check_what_is_shown(engine: RemoteEngine, caplog: pytest.LogCaptureFixture) -> None:
    for text in [*caplog.messages, *(endpoint.reason for endpoint in engine.pool.endpoints)]:
        assert KEY not in text
        assert len(text.splitlines()) == 1
        assert len(text) < 2000
    caplog.clear()


def asked(ask: Callable[[], _T]) -> _T | None:
    """The engine's answer; None if its error names the bad server, and not the key."""
    try:
        return ask()
    except EngineError as error:  # the bad server refused the request
        refusal = str(error)
    assert BAD in refusal
    assert KEY not in refusal
    return None


def whole(value: object, below: int) -> bool:
    return type(value) is int and 0 <= value < below


@given(make=answers())
@ALL
def test_completions(
    engine: RemoteEngine, world: World, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def read(answer: Any) -> Any:
        rows = sorted(answer["choices"], key=lambda choice: choice["index"])
        assert [row["index"] for row in rows] == [0]
        ids, reason = rows[0]["token_ids"], rows[0]["finish_reason"]
        assert 1 <= len(ids) <= 2
        assert all(whole(i, 4096) for i in ids)
        assert reason in ("length", "stop")
        return (tuple(ids[:-1] if reason == "stop" else ids), reason)

    caplog.set_level(logging.DEBUG, "httpx")
    begin(engine, world, make)
    x = engine.embed(["kind"])[0]
    if (completions := asked(lambda: completed(engine, [x], GREEDY, [0]))) is not None:
        (written,) = completions
        found = (written.token_ids, written.finish_reason)
        assert found == ((5, 6), "length") or found == read(world.meant[0])
    check_what_is_shown(engine, caplog)


@given(make=answers())
@ALL
def test_likelihoods(
    engine: RemoteEngine, world: World, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def read(answer: Any) -> Any:
        (row,) = answer["choices"]
        places = zip(row["prompt_logprobs"][-len(COMPLETION) :], COMPLETION, strict=True)
        found = [place[str(token)]["logprob"] for place, token in places]
        assert all(type(x) in (int, float) and math.isfinite(x) for x in found)
        return float(np.mean(found))

    caplog.set_level(logging.DEBUG, "httpx")
    begin(engine, world, make)
    if (values := asked(lambda: likelihoods(engine, [PROMPT], [COMPLETION]))) is not None:
        (value,) = values
        assert math.isfinite(value)
        assert value < 0.01
        assert value == -1.0 or value == read(world.meant[0])
    check_what_is_shown(engine, caplog)


@given(make=answers())
@ALL
def test_servers_are_looked_at_first(
    engine: RemoteEngine, world: World, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its version, models and tokens: the server is in use, or its reason says why not."""
    caplog.set_level(logging.DEBUG, "httpx")
    begin(engine, world, make)
    bad = engine.pool.endpoints[0]
    bad.available = False
    engine.portal.run(engine.pool._enter, bad)
    assert bad.available == (bad.reason == "in use")
    if bad.available:
        assert None not in world.meant
        assert 1 < engine._served[bad.url].max_model_len < 10**10
    check_what_is_shown(engine, caplog)
