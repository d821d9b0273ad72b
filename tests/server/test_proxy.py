"""A monitored gateway is a proxy: requests and answers pass unchanged, and scoring is beside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import Broken, TextServer
from tests.fakes import RudeScorer
from tests.hostile import KEY
from tests.server.running import PATIENCE, Running, counted, running, wait_until
from tide.core.chat import Parts, ToolCall
from tide.engines.openai.engine import OpenAIEngine
from tide.server.generation import Sent
from tide.server.messages import MessageShape
from tide.server.responses import ResponseShape, ResponsesRequest
from tide.server.schemas import event

USER = {"role": "user", "content": "Tell me about the town."}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
BAD = "dull"


@pytest.fixture
def upstream() -> Iterator[TextServer]:
    with TextServer() as upstream:
        yield upstream


@pytest.fixture
def server(upstream: TextServer) -> Iterator[Running]:
    with (
        OpenAIEngine("tiny", base_url=upstream.url) as engine,
        running(engine, RudeScorer(BAD), mode="monitor", strategy="backtrack") as server,
    ):
        upstream.requests.clear()
        yield server


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "The weather"}),
    "fields": (
        "/v1/chat/completions",
        {"messages": [USER], "presence_penalty": 0.5, "logprobs": True, "unknown": [1], "seed": 3},
    ),
    "tools": ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL]}),
    "image": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ),
}


def chunks(url: str, path: str, content: bytes) -> tuple[int, dict[str, str], list[bytes]]:
    """An answer as it arrives: its status, its content type, and its chunks."""
    headers = {"content-type": "application/json"}
    with httpx.stream(
        "POST", url + path, content=content, headers=headers, timeout=PATIENCE
    ) as answer:
        kinds = {name: answer.headers[name] for name in ("content-type",) if name in answer.headers}
        return answer.status_code, kinds, list(answer.iter_raw())


@pytest.mark.parametrize("name", BODIES)
def test_monitored_answer_is_the_servers_byte_for_byte(
    name: str, upstream: TextServer, server: Running
) -> None:
    path, body = BODIES[name]
    if name == "tools":
        upstream.message = lambda body: WIRES["vLLM"](Said("I look.", calls=[("find", "{}")]))
    upstream.pause = 0.005  # each event arrives alone
    for stream in (False, True):
        content = json.dumps({"model": "tiny", **body, "stream": stream}, indent=1).encode()
        direct, passed = (chunks(url, path, content) for url in (upstream.url, server.url))
        assert passed == direct
        sent_directly, sent_on = upstream.requests[-2:]
        assert sent_on == sent_directly


def test_monitored_answers_are_forecast(server: Running, tmp_path: Path) -> None:
    answers = []
    for number in range(10):
        body = {"prompt": f"The weather {number}", "max_tokens": 12}
        answers.append(server.http.post("/v1/completions", json=body))
    changed = sum(BAD in answer.json()["choices"][0]["text"].casefold() for answer in answers)
    assert 0 < changed < 10
    assert answers[0].headers["x-tide-mode"] == "monitor"
    wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 10)
    assert counted(server, "changed") == changed
    assert server.metric('tide_completions_total{outcome="monitored"}') == 10


def test_monitored_request_loses_only_the_field_tide(upstream: TextServer, server: Running) -> None:
    body = {"prompt": "The weather", "model": "scripted", "tide": {"policy": "default"}, "x": 1}
    assert server.http.post("/v1/completions", json=body).status_code == 200
    assert upstream.requests == [{"prompt": "The weather", "model": "tiny", "x": 1}]
    body["tide"] = {"policy": "other"}
    refused = server.http.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tide.policy")


def test_errors_of_the_server_are_passed_on(
    upstream: TextServer, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {"error": {"message": "slow down", "type": "x", "code": 7}}
    upstream.answer = lambda path, body: (429, error, {"Retry-After": "17"})
    refused = server.ask("x")
    assert (refused.status_code, refused.json()) == (429, error)
    assert refused.headers["retry-after"] == "17"
    upstream.answer = lambda path, body: (400, b"no JSON")
    assert server.http.post("/v1/completions", content=b"5").content == b"no JSON"


def test_keys_are_not_passed_on(upstream: TextServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    seen: list[Any] = []

    def quote(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers)
        content = f"wrong key {handler.headers['Authorization']}".encode()
        handler.send_response(401)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    with (
        OpenAIEngine("tiny", base_url=upstream.url) as engine,
        running(
            engine, RudeScorer(BAD), mode="monitor", strategy="backtrack", keys=("secret-a",)
        ) as server,
    ):
        upstream.faults = {"<quote>": Broken(quote)}
        headers = {"Authorization": "Bearer secret-a", "traceparent": "00-1-2-01"}
        body = {"prompt": "<quote>"}
        answer = server.http.post("/v1/completions", json=body, headers=headers)
    assert (answer.status_code, answer.text) == (401, "wrong key Bearer ***")
    (sent,) = seen
    assert sent["Authorization"] == f"Bearer {KEY}"
    assert sent["traceparent"] == "00-1-2-01"


def test_a_gone_server_is_said_after_some_seconds(
    upstream: TextServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        OpenAIEngine("tiny", base_url=upstream.url, deadline=0.5) as engine,
        running(engine, RudeScorer(BAD), mode="monitor", strategy="backtrack") as server,
    ):
        upstream.stop()
        began = time.monotonic()
        gone = server.ask("x")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "engine_error")
        assert 0.4 < time.monotonic() - began < 10
        assert server.http.get("/ready").status_code == 503
        upstream.start()
        wait_until(lambda: server.http.get("/ready").status_code == 200)
        assert server.ask("x").status_code == 200


def answers(shape: Any, text: str, town: str) -> dict[bool, bytes]:
    """A whole answer with a call and its stream, as a server with this API sends them."""
    calls = (ToolCall(id="call_1", name="find", arguments=json.dumps({"town": town})),)
    sent = Sent(text, Parts(tool_calls=calls), "tool_calls", 5, 7, {})
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    piece = shape.piece(0, text[:5])
    events = [*shape.end(0, text[5:], sent), *shape.finish(usage, {})]
    whole = events[-1].get("response") or shape.whole([sent], usage, {})
    return {False: json.dumps(whole).encode(), True: "".join([piece, *map(event, events)]).encode()}


def responses(text: str, town: str) -> dict[bool, bytes]:
    return answers(ResponseShape(ResponsesRequest(input="x"), "tiny"), text, town)


def messages(text: str, town: str) -> dict[bool, bytes]:
    return answers(MessageShape("tiny"), text, town)


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", OTHER_BODIES)
def test_monitored_answers_of_other_apis_pass_and_are_forecast(
    path: str, stream: bool, upstream: TextServer, server: Running
) -> None:
    asked: list[Any] = []
    said: list[bytes] = []

    def answer(path: str, body: Any) -> Any:
        asked.append(body)
        kind = "text/event-stream" if stream else "application/json"
        return 200, said[-1], {"Content-Type": kind}

    upstream.answer = answer
    content = json.dumps({**OTHER_BODIES[path], "stream": stream}, indent=1).encode()
    for text, town in (("It is fine.", "kind"), ("It is dull.", "kind"), ("It is fine.", BAD)):
        said.append((responses if path == "/v1/responses" else messages)(text, town)[stream])
        direct, passed = (chunks(url, path, content) for url in (upstream.url, server.url))
        assert passed == direct
    assert {json.dumps(body) for body in asked} == {json.dumps(json.loads(content))}
    wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 3)
    assert counted(server, "changed") == 2
    said.append(said[0][:-200])  # the server broke off, or wrote no JSON
    chunks(server.url, path, content)
    wait_until(lambda: counted(server, "failed") == 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", OTHER_BODIES)
def test_monitored_request_is_translated_for_a_server_without_its_path(
    path: str, stream: bool, upstream: TextServer, server: Running
) -> None:
    for text in ("It is fine.", "It is dull."):
        upstream.message = lambda body, text=text: WIRES["vLLM"](Said(text))
        answer = server.http.post(path, json={**OTHER_BODIES[path], "stream": stream})
        assert answer.headers["x-tide-translated"] == "/v1/chat/completions"
        assert stream or text in answer.text
        assert '"output_tokens":5' in answer.text  # the server's own count
    wait_until(lambda: counted(server, "changed") + counted(server, "unchanged") == 2)
    assert counted(server, "changed") == 1
    assert [body["messages"] for body in upstream.requests] == [[USER]] * 2
    missing = {**OTHER_BODIES[path], "tools": [{"type": "web_search", "name": "x"}]}
    assert server.http.post(path, json=missing).status_code == 400


def test_a_scorer_that_hangs_delays_no_answer(upstream: TextServer) -> None:
    go_on = threading.Event()

    def scorer(texts: list[str]) -> list[float]:
        go_on.wait(PATIENCE)
        return [0.0] * len(texts)

    with (
        OpenAIEngine("tiny", base_url=upstream.url) as engine,
        running(engine, scorer, mode="monitor", strategy="backtrack") as server,
    ):
        for _ in range(3):
            assert server.ask("x").status_code == 200
        assert counted(server, "unchanged") == 0
        go_on.set()
        wait_until(lambda: counted(server, "unchanged") == 3)


def test_a_client_that_leaves_is_counted(upstream: TextServer, server: Running) -> None:
    upstream.pause = 0.05
    body = {"prompt": "x", "stream": True, "max_tokens": 400}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
        next(answer.iter_raw())
    wait_until(lambda: upstream.left == 1 and counted(server, "failed") == 1)
