"""The remote engine against servers that run a real model, and misbehave on demand."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.writing import completed, likelihoods

from tests.engines.remote import vllm_server
from tests.engines.remote.vllm_server import VllmServer, hang
from tests.models import save_causal_lm
from tide import Detoxifier
from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.settings import Sampling
from tide.engines import Engine, load_engine
from tide.engines.base import Request
from tide.engines.local.engine import TransformersEngine
from tide.engines.remote.engine import RemoteEngine

PROMPTS = ["The weather", "Rain fell on the quiet town and the people", "kind", "is fine is fine"]
GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture(scope="module")
def local() -> TransformersEngine:
    return TransformersEngine("pocket")


@pytest.fixture
def servers(local: TransformersEngine) -> Iterator[list[VllmServer]]:
    with VllmServer(local) as one, VllmServer(local) as two:
        yield [one, two]


@pytest.fixture
def connect(servers: list[VllmServer]) -> Iterator[Callable[..., RemoteEngine]]:
    """Makes engines on both servers, or on those given, and closes them."""
    made: list[RemoteEngine] = []

    def make(*some: VllmServer, **options: Any) -> RemoteEngine:
        urls = [server.url for server in some or servers]
        options = {"dtype": "float32", "deadline": 20.0, **options}
        made.append(RemoteEngine("pocket", base_urls=urls, **options))
        for server in servers:  # forget the requests that probed them
            server.requests.clear()
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def completions_of(engine: Engine, count: int = 4, sampling: Sampling = GREEDY) -> Any:
    embeddings = engine.embed((PROMPTS * count)[:count])
    return completed(engine, embeddings, sampling, range(count))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_it_does_is_what_the_local_engine_does(
    connect: Callable[..., RemoteEngine], local: TransformersEngine
) -> None:
    engine = connect()
    (here, there) = (e.embed(PROMPTS) for e in (local, engine))
    assert all(map(torch.equal, here, there))
    assert [engine.encode(one) for one in PROMPTS] == [local.encode(one) for one in PROMPTS]
    assert completions_of(engine) == completions_of(local)
    sampling = Sampling(temperature=1.0, top_p=0.9, top_k=50, max_new_tokens=6)
    assert completions_of(engine, sampling=sampling) == completions_of(local, sampling=sampling)
    prompts, rows = engine.tokenize(PROMPTS), [[5, 9, 30], [7], [100, 101], [3, 3]]
    assert likelihoods(engine, prompts, rows) == pytest.approx(likelihoods(local, prompts, rows))
    assert engine.decode_nearest(there[1]) == prompts[1]


def test_a_completion_ends_before_its_stop_token(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], local: TransformersEngine
) -> None:
    ids = completions_of(local)[0].token_ids
    choice = {"index": 0, "finish_reason": "stop", "token_ids": [*ids[:2], 0]}
    engine = connect(servers[0])
    servers[0].misbehave = lambda body: (200, {"choices": [choice]})
    (completion,) = completions_of(engine, 1)
    assert (completion.token_ids, completion.finish_reason) == (ids[:2], "stop")
    assert completions_of(local)[0].text.startswith(completion.text)


def test_no_work_is_no_request(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect()
    assert completed(engine, [], GREEDY, []) == []
    assert likelihoods(engine, [], []) == []
    assert not servers[0].requests + servers[1].requests


# Requests


def test_sequences_that_differ_in_the_prompt_alone_share_requests(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], local: TransformersEngine
) -> None:
    """Greedy sequences share them whatever their seeds; each is written as it would be alone."""
    greedy, drawn = GREEDY, Sampling(temperature=0.5, top_p=0.9, max_new_tokens=6)
    rows: list[tuple[Sampling, int, tuple[int, ...]]] = [
        *((greedy, seed, ()) for seed in range(70)),
        *((drawn, seed, ()) for seed in (7, 8, 7)),
        *((greedy, 0, banned) for banned in ((5, 9), (5, 9), (7,))),
        (drawn.model_copy(update={"top_k": 5}), 7, ()),
    ]
    engine = connect(servers[0])
    ids = engine.tokenize(PROMPTS)
    requests = [
        Request(ids[i % 4], own, seed, banned_token_ids=banned)
        for i, (own, seed, banned) in enumerate(rows)
    ]
    found = asyncio.run(engine.complete(requests))
    sent = servers[0].requests
    assert sorted(len(body["prompt"]) for body in sent) == [1, 1, 1, 2, 2, 6, 64]
    assert {body["seed"] for body in sent} == {None, 7, 8}
    biases = {json.dumps(body.get("logit_bias")) for body in sent}
    assert biases == {"null", '{"5": -100.0, "9": -100.0}', '{"7": -100.0}'}
    assert found == asyncio.run(local.complete(requests))
    servers[0].requests.clear()
    completions_of(connect(), 20)
    assert [[len(body["prompt_embeds"]) for body in s.requests] for s in servers] == [[10], [10]]


def test_penalties_of_the_server_are_switched_off(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    """A penalty in the server's generation config would crash it."""
    completions_of(connect(), 2)
    (body,) = servers[0].requests
    assert body["repetition_penalty"] == 1.0
    assert body["presence_penalty"] == body["frequency_penalty"] == body["min_p"] == 0.0


def test_a_view_is_sent_without_the_storage_behind_it(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect(servers[0])
    view = torch.zeros(500, 256).index_fill_(0, torch.tensor([3]), 0.5)[3:4]
    completed(engine, [view], GREEDY, [0])
    assert len(servers[0].requests[0]["prompt_embeds"][0]) < 6000


def test_the_key_comes_from_the_environment(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    connect(servers[0], api_key_env="MY_KEY")
    assert set(servers[0].keys) == {"Bearer s3cret"}
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    connect(servers[1])
    assert set(servers[1].keys) == {None}


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.zeros(3, 7), "shape"),
        (torch.zeros(0, 256), "shape"),
        (torch.full((2, 256), float("nan")), "NaN"),
        (torch.zeros(3, 256, dtype=torch.int64), "float"),
        (torch.zeros(250, 256), "context of 255"),
    ],
)
def test_bad_embeddings_are_not_sent(
    embeddings: torch.Tensor,
    message: str,
    connect: Callable[..., RemoteEngine],
    servers: list[VllmServer],
) -> None:
    engine = connect()
    with pytest.raises(CompletionError, match=message):
        completed(engine, [torch.zeros(2, 256), embeddings], GREEDY, [0, 0])
    with pytest.raises(EngineError, match="likelihood: an empty"):
        likelihoods(engine, [[1], [2]], [[3], []])
    with pytest.raises(CompletionError, match="a token id is outside the model's vocabulary"):
        likelihoods(engine, [[1], [2]], [[3], [99999]])
    assert not servers[0].requests + servers[1].requests


# Servers that fail

FAILURES: dict[str, Any] = {
    "an error": (500, {"error": {"message": "out of order"}}),
    "overloaded": (429, {}),
    "a page": (200, b"<html>welcome</html>"),
    "an error page": (502, b"<html>bad gateway</html>"),
    "nothing": (200, {"choices": []}),
    "aborted": (200, {"choices": [{"index": 0, "finish_reason": "abort", "token_ids": [1]}]}),
    "too much": (200, {"choices": [{"index": 0, "finish_reason": "length", "token_ids": [1] * 9}]}),
    "no token ids": (200, {"choices": [{"index": 0, "finish_reason": "length", "text": "x"}]}),
    "one of another index": (
        200,
        {"choices": [{"index": 1, "finish_reason": "length", "token_ids": [1]}]},
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_other_server_does_the_work(
    failure: str,
    connect: Callable[..., RemoteEngine],
    servers: list[VllmServer],
    local: TransformersEngine,
) -> None:
    engine = connect()
    servers[0].misbehave = lambda body: FAILURES[failure]
    assert completions_of(engine, 2) == completions_of(local, 2)
    assert servers[0].requests
    assert [endpoint.did_well > 0 for endpoint in engine.pool.endpoints] == [False, True]


def test_a_server_that_hangs_counts_as_failed(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], local: TransformersEngine
) -> None:
    engine = connect(timeout=1.5)
    servers[0].misbehave = hang(4.0)
    assert completions_of(engine) == completions_of(local)


def test_a_server_leaves_and_returns(
    connect: Callable[..., RemoteEngine],
    servers: list[VllmServer],
    local: TransformersEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = connect()
    first = engine.pool.endpoints[0]
    servers[0].stop()
    with caplog.at_level(logging.WARNING, "tide"):
        assert completions_of(engine, 20) == completions_of(local, 20)
    assert not first.available
    assert caplog.text.count(f"{first.url} is out of the pool: ConnectError") == 1
    servers[0].start()
    wait_until(lambda: first.available)
    assert completions_of(engine, 20) == completions_of(local, 20)
    assert first.did_well > 0


def test_a_server_with_less_context_does_not_return(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect()
    servers[0].misbehave = lambda body: (500, {})
    completions_of(engine)
    servers[0].misbehave = lambda body: None
    servers[0].max_model_len = 100
    wait_until(lambda: "context of 100" in engine.pool.endpoints[0].reason)
    assert not engine.pool.endpoints[0].available


def test_one_server_may_be_down_at_the_start(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], local: TransformersEngine
) -> None:
    servers[0].stop()
    engine = connect()
    assert completions_of(engine) == completions_of(local)
    servers[0].start()
    wait_until(lambda: engine.pool.endpoints[0].available)


def test_an_overloaded_server_is_asked_again(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], local: TransformersEngine
) -> None:
    engine = connect(servers[0])
    busy = iter([(429, {}), (429, {})])
    servers[0].misbehave = lambda body: next(busy, None)
    assert completions_of(engine) == completions_of(local)
    assert len(servers[0].requests) == 3


def test_all_servers_gone_is_an_error_after_the_deadline(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect(deadline=4.0)
    for server in servers:
        server.stop()
    with pytest.raises(EngineError, match=r"within 4 s \(deadline\).*ConnectError.*ConnectError"):
        completions_of(engine)
    servers[1].start()
    wait_until(lambda: engine.pool.endpoints[1].available)
    assert len(completions_of(engine)) == 4


def test_a_deadline_error_says_which_server_hung(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect(servers[0], deadline=1.0, timeout=60.0)
    servers[0].misbehave = hang(2.0)
    with pytest.raises(EngineError, match=rf"{servers[0].url}: no answer within [\d.]+ seconds"):
        completions_of(engine)


@pytest.mark.parametrize("outside", [4096, 999_999, -1, 10**400])
def test_a_token_outside_the_vocabulary_is_anothers_work(
    outside: int,
    connect: Callable[..., RemoteEngine],
    servers: list[VllmServer],
    local: TransformersEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = connect()
    choice = {"index": 0, "finish_reason": "length", "token_ids": [outside]}
    servers[0].misbehave = lambda body: (200, {"choices": [choice]})
    with caplog.at_level(logging.WARNING, "tide"):
        assert completions_of(engine, 1) == completions_of(local, 1)
        wait_until(lambda: f"{servers[0].url} is out of the pool" in caplog.text)
    assert "vocabulary" in caplog.text or "token_ids" in caplog.text


@pytest.mark.parametrize(
    "version", ["9" * 10**6, "1." * 10**5 + "0", "", 5, None, ["0.32.0"], "0.31\x1b[2J"]
)
def test_a_version_is_a_short_text(
    version: Any, connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    servers[0].version = version
    engine = connect()
    bad = engine.pool.endpoints[0]
    assert bad.available == (version in ("", "0.31\x1b[2J"))  # a build from source
    assert len(bad.reason) < 200


def test_finished_results_survive_the_servers(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect(deadline=2.0, max_batch=2)
    results = Detoxifier(engine).map(f"The weather {i} is" for i in range(40))
    kept = [next(results)]
    for server in servers:
        server.stop()
    with pytest.raises(EngineError, match="deadline"):
        kept.extend(results)
    assert 1 <= len(kept) < 40
    assert [result.prompt for result in kept] == [f"The weather {i} is" for i in range(len(kept))]


def test_a_refused_request_is_an_error_at_once(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect()
    for server in servers:
        server.misbehave = lambda body: (400, {"error": {"message": "no\nembeddings here"}})
    with pytest.raises(EngineError, match=r"http.*: HTTP 400 to /v1/completions: no embeddings"):
        completions_of(engine, 1)
    # Each server was also checked, and failed that too: the prompt is not to blame.
    assert [len(server.requests) for server in servers] == [2, 2]
    assert not engine.available


@pytest.mark.parametrize("failure", [(500, {}), (400, {}), (403, {}), FAILURES["aborted"]], ids=str)
def test_a_request_that_servers_fail_at_which_do_others_fails_alone(
    failure: Any,
    connect: Callable[..., RemoteEngine],
    servers: list[VllmServer],
    local: TransformersEngine,
) -> None:
    engine = connect()
    for server in servers:
        server.misbehave = lambda body: failure if body["max_tokens"] == 5 else None
    bad = GREEDY.model_copy(update={"max_new_tokens": 5})
    for piece_tokens in (None, 2):
        requests = [
            Request(engine.embed(PROMPTS[:1])[0], sampling, piece_tokens=piece_tokens)
            for sampling in (GREEDY, bad, GREEDY)
        ]
        one, failed, other = asyncio.run(_each(engine, requests))
        assert isinstance(failed, CompletionError)
        assert str(failed).startswith("http")
        assert one == other == completions_of(local, 1)[0].token_ids
    assert all(endpoint.available for endpoint in engine.pool.endpoints)
    asked = sum(body["max_tokens"] == 5 for server in servers for body in server.requests)
    assert asked <= 10


def test_of_requests_that_are_sent_together_only_the_faulty_one_fails(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], local: TransformersEngine
) -> None:
    engine = connect(servers[0])
    ids = engine.tokenize(PROMPTS)
    servers[0].misbehave = lambda body: (400, {}) if ids[2] in body.get("prompt", ()) else None
    requests = [Request(one, GREEDY, priority=number) for number, one in enumerate(ids)]
    # In the engine's own loop, all are asked for in one turn.
    one, two, failed, four = engine.portal.run(_each, engine, requests)
    assert isinstance(failed, CompletionError)
    expected = asyncio.run(local.complete(requests))
    assert [one, two, four] == [expected[place].token_ids for place in (0, 1, 3)]
    sizes = [len(body["prompt"]) for body in servers[0].requests if "prompt" in body]
    assert sizes[0] == 4


def test_no_more_sequences_run_than_allowed(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    running, most = 0, 0
    complete = servers[0]._complete

    def counting(body: dict[str, Any]) -> Any:
        nonlocal running, most
        running += len(body["prompt_embeds"])
        most = max(most, running)
        time.sleep(0.05)
        running -= len(body["prompt_embeds"])
        return complete(body)

    engine = connect(servers[0], max_batch=3)
    servers[0]._complete = counting  # type: ignore[method-assign]
    assert len(completions_of(engine, 10)) == 10
    assert 1 <= most <= 3


def test_a_request_that_cannot_be_compared_fails_alone(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect()
    (ids,) = engine.tokenize(PROMPTS[:1])
    odd: Any = [5]  # a list cannot be hashed
    requests = [Request(ids, GREEDY), Request(ids, GREEDY, banned_token_ids=odd)]
    good, bad = asyncio.run(_each(engine, requests))
    assert len(good) == 6
    assert isinstance(bad, EngineError)


def test_an_engine_that_is_dropped_ends_while_a_server_is_down(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    servers[0].stop()
    urls = [server.url for server in servers]
    engine = RemoteEngine("pocket", base_urls=urls, dtype="float32", deadline=20.0)
    thread = engine.portal._thread
    del engine

    def has_ended() -> bool:
        gc.collect()
        return not thread.is_alive()

    wait_until(has_ended)


async def _each(engine: Engine, requests: list[Request]) -> list[Any]:
    async def whole(request: Request) -> tuple[int, ...]:
        return sum([piece.token_ids async for piece in engine.write(request)], ())

    return await asyncio.gather(*map(whole, requests), return_exceptions=True)


def test_a_likelihood_that_was_not_sent(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect(servers[0], deadline=1.0)
    choice = {"index": 0, "finish_reason": "length", "token_ids": [1]}
    for wrong in (None, [None, None], [None, {"7": {"logprob": -1.0}}]):
        answer = {"choices": [{**choice, "prompt_logprobs": wrong}]}
        servers[0].misbehave = lambda body, answer=answer: (200, answer)
        with pytest.raises(EngineError, match="without the requested log-probabilities"):
            likelihoods(engine, [[5]], [[6]])
        servers[0].misbehave = lambda body: None
        wait_until(lambda: engine.pool.endpoints[0].available)


# Checks of servers before they are used


def test_a_wrong_key_is_said(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    for server in servers:
        server.misbehave = lambda body: (401, {"error": "Unauthorized"})
    with pytest.raises(EngineError, match=r"no server can be used: .*rejects the API key"):
        connect()


def test_an_old_vllm_is_refused(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    for server in servers:
        server.version = "0.31.1"
    with pytest.raises(EngineError, match=r"runs vLLM 0\.31\.1, which has known security holes"):
        connect()
    servers[1].version = "0.1.dev7+g2f5"  # a development build of any age
    with pytest.raises(EngineError, match="security holes"):
        connect()
    servers[1].version = "1.0.0rc1"
    assert [e.available for e in connect().pool.endpoints] == [False, True]


@pytest.mark.parametrize(
    ("scale", "message"), [(1 / 16.0, "multiplied by 16;"), (5.0, "does vLLM run another model?")]
)
def test_a_server_that_writes_something_else_from_embeddings(
    scale: float,
    message: str,
    connect: Callable[..., RemoteEngine],
    servers: list[VllmServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers[1].scale = scale
    with caplog.at_level(logging.WARNING, "tide"):
        engine = connect()
    assert f"{servers[1].url}: " in caplog.text
    assert message in caplog.text
    with pytest.raises(EngineError, match="embeddings"):
        engine.verify()


def test_another_model_than_the_servers(servers: list[VllmServer], tmp_path: Path) -> None:
    folder = save_causal_lm(tmp_path, "gpt2")
    with pytest.raises(EngineError, match="no server can be used"):  # embeddings of another width
        RemoteEngine(folder, base_urls=[server.url for server in servers])


# Options


def test_bad_options() -> None:
    for options, message in (
        ({}, "give at least one server"),
        ({"base_urls": "ftp://somewhere"}, "base_urls: expected an address"),
        ({"base_urls": ["http://a:1", "http://a:1/v1"]}, "twice"),
        ({"base_urls": "http://user:password@a"}, "base_urls: an address with a user"),
        ({"base_urls": 5}, "base_urls"),
        ({"base_urls": "http://a", "trust_remote_code": "perhaps"}, "trust_remote_code"),
        ({"base_urls": "http://a", "max_batch": 10**9}, "max_batch"),
        ({"base_urls": "http://a", "deadline": 0}, "deadline"),
        ({"base_urls": "http://a", "deadline": float("inf")}, "deadline"),
        ({"base_urls": "http://a", "timeout": float("nan")}, "timeout"),
        ({"base_urls": "http://a", "dtype": "float33"}, "dtype"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            RemoteEngine("pocket", **options)  # type: ignore[arg-type]
        assert "password@" not in str(refused.value)
    with pytest.raises(InputError, match="engine 'remote' has no option 'device'"):
        load_engine("remote", "pocket", device="cuda")
    with pytest.raises(EngineError, match="no such folder"):
        RemoteEngine("/nowhere/at/all", base_urls="http://a")


def test_the_dtype_is_the_checkpoints(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer]
) -> None:
    engine = connect(servers[0], dtype="auto")
    assert engine.dtype == torch.float16
    assert len(completions_of(engine)) == 4
    with pytest.raises(CompletionError, match=r"infinite values \(as torch.float16\)"):
        completed(engine, [torch.full((2, 256), 1e6)], GREEDY, [0])


def test_least_lengths_and_stop_strings_are_the_servers(
    connect: Callable[..., RemoteEngine], local: TransformersEngine, servers: list[VllmServer]
) -> None:
    """A server includes the tokens of a stop string in the ids, and names the string."""
    engine = connect()
    long = GREEDY.model_copy(update={"max_new_tokens": 20, "min_new_tokens": 15})
    texts = [completion.text for completion in completions_of(local, sampling=long)]
    stop = tuple(text[5:8] for text in texts)
    for sampling in (long, long.model_copy(update={"stop": stop})):
        found = completions_of(engine, sampling=sampling)
        assert found == completions_of(local, sampling=sampling)
        assert all(body["min_tokens"] == 15 for server in servers for body in server.requests)
    assert {completion.finish_reason for completion in found} == {"stop"}
    assert all(len(completion.text) <= 5 for completion in found)
    # If a server names a stop string that is not in the text, the text stays whole.
    choice = {"index": 0, "finish_reason": "stop", "stop_reason": "!", "token_ids": [5, 9]}
    one = connect(servers[0])
    servers[0].misbehave = lambda body: (200, {"choices": [choice]})
    assert completions_of(one, 1)[0].token_ids == (5, 9)


def test_penalties_never_reach_a_server(connect: Callable[..., RemoteEngine]) -> None:
    engine = connect()
    with pytest.raises(InputError, match="repetition_penalty: not supported by RemoteEngine"):
        Detoxifier(engine, repetition_penalty=1.1)
    with pytest.raises(InputError, match="repetition_penalty: not supported by RemoteEngine"):
        completions_of(engine, sampling=Sampling(repetition_penalty=1.1))


async def _streamed(engine: Engine, request: Request) -> list[tuple[int, ...]]:
    return [piece.token_ids async for piece in engine.write(request)]


def test_a_stream_is_the_whole_completion(connect: Callable[..., RemoteEngine]) -> None:
    engine = connect()
    for prompt in (engine.tokenize(PROMPTS[:1])[0], engine.embed(PROMPTS[:1])[0]):
        sampling = Sampling(temperature=1.0, max_new_tokens=7)
        pieces = asyncio.run(_streamed(engine, Request(prompt, sampling, 3, piece_tokens=3)))
        (whole,) = completed(engine, [prompt], sampling, [3])
        assert sum(pieces, ()) == whole.token_ids
        assert len(pieces) == 3


@pytest.mark.parametrize("says_done", [False, True])
def test_a_stream_that_breaks_off_goes_on_at_another_server(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], says_done: bool
) -> None:
    engine = connect()
    request = Request(engine.embed(PROMPTS[1:2])[0], GREEDY, piece_tokens=2)
    (whole,) = completed(engine, [request.prompt], GREEDY, [0])
    for server in servers:
        server.most_events, server.says_done = 1, says_done
    assert asyncio.run(_broken_once(engine, request, servers)) == whole.token_ids
    bodies = [body for server in servers for body in server.requests if body.get("stream")]
    asked = sorted(bodies, key=lambda body: -int(body["max_tokens"]))
    assert [body["max_tokens"] for body in asked] == [6, 4]


def test_a_stream_that_breaks_off_after_its_last_token_has_ended(
    connect: Callable[..., RemoteEngine], servers: list[VllmServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = vllm_server._parts

    def with_an_end(choice: dict[str, Any], size: int) -> list[dict[str, Any]]:
        end = {"index": 0, "text": "", "token_ids": [], "finish_reason": choice["finish_reason"]}
        return [*({**one, "finish_reason": None} for one in parts(choice, size)), end]

    monkeypatch.setattr(vllm_server, "_parts", with_an_end)
    engine = connect(servers[0])
    sampling = GREEDY.model_copy(update={"min_new_tokens": 6})
    request = Request(engine.tokenize(PROMPTS[:1])[0], sampling, piece_tokens=2)
    servers[0].most_events = 3
    assert len(sum(asyncio.run(_streamed(engine, request)), ())) == 6
    assert all(body["max_tokens"] > 0 for body in servers[0].requests)


async def _broken_once(
    engine: Engine, request: Request, servers: list[VllmServer]
) -> tuple[int, ...]:
    """The ids that are streamed if the first server breaks off."""
    ids: tuple[int, ...] = ()
    async for piece in engine.write(request):
        ids += piece.token_ids
        for server in servers:
            server.most_events = None
    return ids


@pytest.mark.parametrize(
    "config",
    ["{", '{"model_type": "gpt2", "n_layer": 100000}', '{"model_type": "no-such-model"}', None],
)
def test_a_folder_with_a_broken_config_is_refused(tmp_path: Path, config: str | None) -> None:
    folder = save_causal_lm(tmp_path / "model", "gpt2")
    if config is None:
        (folder / "config.json").unlink()
    else:
        (folder / "config.json").write_text(config)
    with pytest.raises(EngineError, match=f"^model {folder}: cannot ") as caught:
        RemoteEngine(folder, base_urls="http://127.0.0.1:1")
    assert "\n" not in str(caught.value)
