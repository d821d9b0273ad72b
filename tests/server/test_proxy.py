"""A monitored gateway is a proxy: requests and answers pass unchanged, and scoring is beside."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx
import pytest

from tests.engines.openai.messages import Said
from tests.engines.openai.server import TextServer
from tests.fakes import HeldScorer, RudeScorer
from tests.hostile import KEY
from tests.server.gateways import BAD, gateway, says, writes
from tests.server.running import (
    PATIENCE,
    USER,
    Running,
    counted,
    running,
    wait_for_forecasts,
    wait_until,
)
from tide.core.chat import Parts, ToolCall
from tide.core.results import Usage
from tide.engines.openai.engine import OpenAIEngine
from tide.server.answers import event
from tide.server.generation import Sent
from tide.server.messages import MessageShape
from tide.server.responses import ResponseShape, ResponsesRequest


@pytest.fixture
def server(upstream: TextServer, text_engine: OpenAIEngine) -> Iterator[Running]:
    with running(text_engine, RudeScorer(BAD), mode="monitor", strategy="backtrack") as server:
        yield server


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "The weather"}),
    "fields": (
        "/v1/chat/completions",
        {"messages": [USER], "presence_penalty": 0.5, "logprobs": True, "unknown": [1], "seed": 3},
    ),
    "image": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ),
}


def received(url: str, path: str, content: bytes) -> tuple[int, str | None, bytes, bool]:
    """An answer: its status, content type and bytes, and whether they came in several chunks."""
    headers = {"content-type": "application/json"}
    with httpx.stream(
        "POST", url + path, content=content, headers=headers, timeout=PATIENCE
    ) as answer:
        chunks = list(answer.iter_raw())
    kind = answer.headers.get("content-type")
    return answer.status_code, kind, b"".join(chunks), len(chunks) > 1


@pytest.mark.parametrize("name", BODIES)
def test_monitored_bytes_are_the_servers(name: str, upstream: TextServer, server: Running) -> None:
    path, body = BODIES[name]
    writes(upstream, [" a", f" {BAD}", " town"])
    upstream.pause = 0.005  # each event arrives alone
    for stream in (False, True):
        content = json.dumps({"model": "tiny", **body, "stream": stream}, indent=1).encode()
        direct, passed = (received(url, path, content) for url in (upstream.url, server.url))
        assert passed == direct
        sent_directly, sent_on = upstream.requests[-2:]
        assert sent_on == sent_directly
    outcome = "failed" if "logprobs" in body else "changed"  # enforcing refuses the field
    wait_until(lambda: counted(server, outcome) == 2)
    monitored = server.metric('tide_completions_total{outcome="monitored"}')
    assert monitored == counted(server, "changed")


def test_monitored_request_loses_only_the_field_tide(upstream: TextServer, server: Running) -> None:
    sent = {"model": "scripted", "x": 1}
    answer = server.ask("The weather", tide={"policy": "default"}, **sent)
    assert (answer.status_code, answer.headers["x-tide-mode"]) == (200, "monitor")
    assert upstream.requests == [{"prompt": "The weather", "model": "tiny", "x": 1}]
    refused = server.ask("The weather", tide={"policy": "other"}, **sent)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "tide.policy")


def test_errors_of_the_server_are_passed_on(upstream: TextServer, server: Running) -> None:
    error = {"error": {"message": "slow down", "type": "x", "code": 7}}
    upstream.answer = lambda path, body: (429, error, {"Retry-After": "17"})
    refused = server.ask("x")
    assert (refused.status_code, refused.json()) == (429, error)
    assert refused.headers["retry-after"] == "17"
    upstream.answer = lambda path, body: (400, b"no JSON")
    assert server.http.post("/v1/completions", content=b"5").content == b"no JSON"


def test_headers_lose_only_keys(upstream: TextServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    upstream.faults = {"<quote>": (400, f"wrong key {KEY}".encode())}
    headers = {"Authorization": "Bearer secret-a", "traceparent": "00-1-2-01"}
    headers |= {"content-type": "text/x-json", "x-title": "Caf\u00e9"}
    encoded = {name: value.encode() for name, value in headers.items()}
    with gateway(upstream, mode="monitor", keys=("secret-a",)) as server:
        body = {"prompt": "<quote>"}
        answer = server.http.post("/v1/completions", json=body, headers=encoded)
    assert (answer.status_code, answer.text) == (400, "wrong key ***")
    sent = upstream.headers[-1]
    assert sent["Authorization"] == f"Bearer {KEY}"
    assert sent["traceparent"] == "00-1-2-01"
    assert sent["content-type"] == "text/x-json"
    assert sent["x-title"].encode("latin-1") == encoded["x-title"]


OTHER_BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "input": "Tell me about the town.",
        "tools": [{"type": "function", "name": "find"}],
        "store": True,
        "unknown": [1],
    },
    "/v1/messages": {
        "messages": [USER],
        "tools": [{"name": "find", "input_schema": {}}],
        "max_tokens": 20,
        "thinking": {"type": "disabled"},
    },
}
other_apis = pytest.mark.parametrize("path", OTHER_BODIES)
whole_or_stream = pytest.mark.parametrize("stream", [False, True])


def answer_of(path: str, text: str, town: str, stream: bool) -> bytes:
    """An answer with a call, or its stream, as a server with this API sends it."""
    shape: Any = MessageShape("tiny")
    if path == "/v1/responses":
        shape = ResponseShape(ResponsesRequest(input="x"), "tiny")
    calls = (ToolCall(id="call_1", name="find", arguments=json.dumps({"town": town})),)
    sent = Sent(text, Parts(tool_calls=calls), "tool_calls", Usage(7, 5), {})
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    piece = shape.piece(0, text[:5])
    events = [*shape.end(0, text[5:], sent), *shape.finish(usage, {})]
    if stream:
        return "".join([piece, *map(event, events)]).encode()
    return json.dumps(events[-1].get("response") or shape.whole([sent], usage, {})).encode()


@whole_or_stream
@other_apis
def test_other_apis_pass(path: str, stream: bool, upstream: TextServer, server: Running) -> None:
    asked: list[Any] = []
    said: list[bytes] = []

    def answer(path: str, body: Any) -> Any:
        asked.append(body)
        kind = "text/event-stream" if stream else "application/json"
        return 200, said[-1], {"Content-Type": kind}

    upstream.answer = answer
    content = json.dumps({**OTHER_BODIES[path], "stream": stream}, indent=1).encode()
    for text, town in (("It is fine.", "kind"), ("It is dull.", "kind"), ("It is fine.", BAD)):
        said.append(answer_of(path, text, town, stream))
        direct, passed = (received(url, path, content) for url in (upstream.url, server.url))
        assert passed == direct
    assert all(body == json.loads(content) for body in asked)
    wait_for_forecasts(server, 3)
    assert counted(server, "changed") == 2
    said.append(said[0][:-200])  # the server broke off, or wrote no JSON
    received(server.url, path, content)
    wait_until(lambda: counted(server, "failed") == 1)


@whole_or_stream
@other_apis
def test_missing_path(path: str, stream: bool, upstream: TextServer, server: Running) -> None:
    says(upstream, Said("It is fine."), Said("It is dull."))
    for text in ("It is fine.", "It is dull."):
        answer = server.post(path, {**OTHER_BODIES[path], "stream": stream})
        assert answer.headers["x-tide-translated"] == "/v1/chat/completions"
        assert stream or text in answer.text
        assert '"output_tokens":5' in answer.text  # the server's own count
    wait_for_forecasts(server, 2)
    assert counted(server, "changed") == 1
    assert [body["messages"] for body in upstream.requests] == [[USER]] * 2
    missing = {**OTHER_BODIES[path], "tools": [{"type": "web_search", "name": "x"}]}
    assert server.post(path, missing).status_code == 400


def test_monitored_message_that_outlasts_the_drain_ends_with_an_error(
    upstream: TextServer, text_engine: OpenAIEngine
) -> None:
    """Without an error of its API, Anthropic's client takes the message for whole."""
    ended = threading.Event()

    def begin(handler: BaseHTTPRequestHandler, body: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(MessageShape("tiny").piece(0, "It is").encode())
        ended.wait(PATIENCE)
        handler.close_connection = True

    upstream._reply = begin  # type: ignore[method-assign]
    body = {**OTHER_BODIES["/v1/messages"], "stream": True}
    options: dict[str, Any] = {"mode": "monitor", "strategy": "backtrack", "drain": 0.3}
    with (
        running(text_engine, RudeScorer(BAD), **options) as server,
        server.http.stream("POST", "/v1/messages", json=body) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == "event: message_start"
        server.server.should_exit = True
        *_, kind, error, _ = lines
        ended.set()
    assert kind == "event: error"
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "shutting_down"


def test_scorer_that_hangs_delays_no_answer(upstream: TextServer) -> None:
    scorer = HeldScorer()
    with gateway(upstream, scorer, mode="monitor") as server:
        for _ in range(3):
            assert server.ask("x").status_code == 200
        assert counted(server, "unchanged") == 0
        scorer.go.set()
        wait_until(lambda: counted(server, "unchanged") == 3)


def test_a_client_that_leaves_is_counted(upstream: TextServer, server: Running) -> None:
    upstream.pause = 0.05
    body = {"prompt": "x", "stream": True, "max_tokens": 400}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
        next(answer.iter_raw())
    wait_until(lambda: upstream.left == 1 and counted(server, "failed") == 1)
