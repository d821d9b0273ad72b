"""Keys, sizes, limits, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from tests.fakes import Babbler, FailingScorer, FakeEngine, FakeScorer
from tests.server.running import BACKTRACK, PATIENCE, Held, Running, running, wait_until
from tests.worlds import PROMPTS, ReadingScorer
from tide.core.errors import InputError, ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.scorers.wrappers import ConfirmScorer
from tide.server.gate import Gate, check_exposure, read_keys, traced
from tide.server.limits import Limits
from tide.server.monitor import Monitor
from tide.server.policies import CommandLine, Policies

KEYS = ("sk-the-first-of-two", "sk-the-second-of-two")
JSON = {"content-type": "application/json"}
SCOPE = {
    "type": "http", "method": "POST", "path": "/", "client": ("127.0.0.1", 5),
    "headers": [(b"host", b"localhost")],
}  # fmt: skip


def post(server: Running, body: bytes, length: int) -> socket.socket:
    """Send a request of this length on a new connection, which is left open."""
    connection = server.connect()
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    head.append(f"Content-Length: {length}")
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
    return connection


def requests_with(server: Running, status: int) -> float:
    labels = f'route="/v1/completions",status="{status}"'
    return server.metric(f"tide_requests_total{{{labels}}}")


# Keys and hosts


def test_keys() -> None:
    with running(keys=KEYS) as server:
        for key in KEYS:
            assert server.ask_with({"authorization": f"Bearer {key}"}).status_code == 200
            for header in ("x-api-key", "x-goog-api-key", "api-key"):
                assert server.ask_with({header: key}).status_code == 200
        wrong: list[dict[str, str]] = [{}, {"authorization": f"Basic {KEYS[0]}"}]
        wrong += [{"authorization": f"Bearer {KEYS[0]}{end}"} for end in ("x", "\xe9", ", x")]
        wrong += [{"authorization": "Bearer"}, {"x-api-key": KEYS[0][:-1]}]
        for headers in wrong:
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            for path in ("/v1/models", "/metrics", "/version", "/openapi.json", "/no/such"):
                answer = server.http.get(path, headers=encoded)
                assert answer.status_code == 401, (headers, path)
                assert answer.headers["www-authenticate"] == 'Bearer realm="tide"'
                assert answer.json()["error"]["code"] == "invalid_api_key"
        assert server.http.get(f"/v1/models?key={KEYS[0]}").status_code == 401
        for path in ("/", "/health", "/ready"):
            assert server.http.get(path).status_code == 200


def test_without_a_key_pages_of_other_sites_are_not_served() -> None:
    with running() as server:
        for host in ("evil.example", "127.0.0.1.evil.example", "a@evil.example:80", ""):
            assert server.http.get("/v1/models", headers={"host": host}).status_code == 401, host
        for host in ("localhost", "localhost:8000", "127.0.0.1", "[::1]:80"):
            assert server.http.get("/v1/models", headers={"host": host}).status_code == 200, host


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a key, only loopback is listened at.
    monkeypatch.delenv("TIDE_SERVE_KEYS", raising=False)
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        check_exposure(host, read_keys())
    for host in ("0.0.0.0", "::", "192.168.0.9", "example.org", ""):
        with pytest.raises(InputError, match="TIDE_SERVE_KEYS"):
            check_exposure(host, read_keys())
    check_exposure("0.0.0.0", [SecretStr("x")])
    monkeypatch.setenv("TIDE_SERVE_KEYS", f"{KEYS[0]}, {KEYS[1]},")
    assert [key.get_secret_value() for key in read_keys()] == list(KEYS)
    monkeypatch.setenv("TIDE_SERVE_KEYS", "a b")
    with pytest.raises(InputError):
        read_keys()


# Requests


def test_body_that_is_too_long_or_encoded() -> None:
    with running(limits=Limits(max_body=2000)) as server:
        assert server.ask("x " * 800, max_tokens=1).status_code in (200, 400)
        long = server.ask("x " * 2000)
        assert (long.status_code, long.headers["x-should-retry"]) == (413, "false")
        assert long.json()["error"]["message"] == "more than 2,000 bytes, the server's --max-body"
        in_chunks = iter([b'{"prompt": "', *[b"x" * 100] * 40, b'"}'])
        unsaid = server.http.post("/v1/completions", content=in_chunks, headers=JSON)
        assert unsaid.status_code == 413
        # Far too long: the server closes the connection.
        with post(server, b"", 10**9) as connection:
            sent = 0
            with suppress(OSError):
                while sent < 10**8:
                    sent += connection.send(b"x" * 65_536)
            assert sent < 10**8
        encoded = server.ask_with({"content-encoding": "gzip"})
        assert encoded.status_code == 415
        assert "Content-Encoding: gzip" in encoded.json()["error"]["message"]
        assert server.ask().status_code == 200


def test_head_is_get_without_the_body_and_a_client_may_number_requests() -> None:
    with running() as server:
        for path in ("/", "/health", "/ready", "/v1/models", "/metrics", "/version"):
            answer = server.http.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"] == server.http.get(path).headers["content-type"]
        assert server.http.head("/v1/completions").headers["allow"] == "POST"
        assert server.http.get("/health").json() == {"status": "ok"}  # the connection still works
        for given in ("abc-1.2_3", "a b", "x" * 65, "\xe9"):
            headers = {"x-request-id": given.encode("latin-1")}
            number = server.http.get("/health", headers=headers).headers["x-request-id"]
            assert (number == given) == (given == "abc-1.2_3")
            assert number.isascii()


def test_a_queue_that_is_full_says_when_to_come_again() -> None:
    held = Held()
    limits = Limits(max_under_way=3)
    with running(held.engine, limits=limits) as server, ThreadPoolExecutor() as clients:
        asked = clients.submit(server.ask, n=3)
        assert held.writing.wait(PATIENCE)
        full = server.ask()
        assert full.status_code == server.ask(stream=True).status_code == 429
        assert int(full.headers["retry-after"]) >= 1
        assert "x-should-retry" not in full.headers
        assert server.metric("tide_completions_under_way") == 3
        held.go.set()
        assert asked.result().status_code == 200
        assert server.ask().status_code == 200
        assert server.metric("tide_completions_under_way") == 0


# Clients that leave, flood or do not read


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_work(stream: bool) -> None:
    held, scorer = Held(), ReadingScorer()
    with running(held.engine, scorer, toxicity_threshold=0.001, max_iterations=1000) as server:
        body = json.dumps({"prompt": PROMPTS[0], "n": 3, "stream": stream}).encode()
        with post(server, body, len(body)):
            assert held.writing.wait(PATIENCE)
        wait_until(lambda: server.metric("tide_completions_under_way") == 0)
        wait_until(lambda: requests_with(server, 499) == 1)
        wait_until(lambda: 0 < held.begun == held.aborted)  # some may never have begun
        held.go.set()
        time.sleep(0.2)
        # Its requests were aborted: nothing was written or scored.
        assert held.engine.requests == []
        assert scorer.calls == []
        assert server.metric("tide_requests_in_flight") == 1  # the request for the metrics
        assert server.ask(tide={"max_iterations": 1}).status_code == 200


def test_a_client_that_does_not_read_is_left() -> None:
    """Its connection takes no more bytes, so its answer would be held for ever."""
    policies = Policies(CommandLine(scorer=ReadingScorer()), limits=Limits(request_seconds=0.2))
    ended: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        finally:
            ended.append(True)

    async def full(_: Any) -> None:
        await asyncio.Event().wait()

    async def ask() -> None:
        requests: asyncio.Queue[Any] = asyncio.Queue()
        requests.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        with anyio.fail_after(PATIENCE):
            await Gate(app, policies, Monitor(policies))(SCOPE, requests.get, full)

    asyncio.run(ask())
    assert ended


def test_a_stream_says_that_it_is_alive_and_a_deadline_ends_it() -> None:
    held = Held()
    with running(held.engine, limits=Limits(keep_alive=0.05, request_seconds=0.5)) as server:
        streamed = server.ask(stream=True)
        assert streamed.status_code == 200
        assert streamed.text.startswith(": keep-alive\n\n: keep-alive\n\n")
        assert '"code":"deadline"' in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")
        wait_until(lambda: requests_with(server, 504) == 1)  # not 200, with which it began
        whole = server.ask()
        assert (whole.status_code, whole.headers["x-should-retry"]) == (504, "false")
        held.go.set()


def test_request_that_outlasts_the_drain(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    body = {"prompt": "x", "stream": True}
    with (
        running(held.engine, limits=Limits(keep_alive=0.05), drain=0.3) as server,
        ThreadPoolExecutor() as clients,
        server.http.stream("POST", "/v1/completions", json=body) as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines) == ": keep-alive"
        asked = clients.submit(server.ask)
        wait_until(lambda: held.begun == 2)
        server.server.should_exit = True
        *_, last, _, done, _ = lines
        answer = asked.result()
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert done == "data: [DONE]"
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert "Exception in ASGI application" not in caplog.text


# Scorers that fail, errors and logs


@pytest.mark.parametrize(
    ("error", "code", "again"),
    [
        (ScorerUnavailableError("down"), "scorer_unavailable", True),
        (ScorerRefusedError("ended"), "scorer_refused", False),
        (ScorerError("never"), "scorer_unavailable", True),  # for every text: it is broken
    ],
)
def test_without_a_scorer_nothing_leaves(
    error: Exception, code: str, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = FailingScorer(error)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x"},
        "/v1/moderations": {"input": "x"},
        "/beta/litellm_basic_guardrail_api": {"input_type": "request", "texts": ["text"]},
    }
    with caplog.at_level(logging.INFO, "tide.server"), running(scorer=scorer) as server:
        answers = [server.post(path, body) for path, body in bodies.items()]
        for answer in [*answers, server.ask(stream=True)]:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == code
            assert "toxicity 0" not in answer.text
        comment = {"comment": {"text": "text"}, "requestedAttributes": {"TOXICITY": {}}}
        answer = server.post("/v1alpha1/comments:analyze", comment)
        assert answer.status_code == answer.json()["error"]["code"] == 503
        kind = type(error).__name__
        assert server.metric(f'tide_scorer_errors_total{{kind="{kind}"}}') >= 3
        assert ("x-should-retry" not in answers[0].headers) == again
        assert server.http.get("/health").status_code == 200
        ready = server.http.get("/ready")
        assert (ready.status_code, ready.json()["down"]) == (503, ["scorer fake"])
        wait_until(lambda: requests_with(server, 503) == 2)
        scorer.error = None
        assert server.http.get("/ready").status_code == 200
        assert server.ask().status_code == 200
    for status, level in ((503, "ERROR"), (200, "INFO")):
        lines = [record for record in caplog.records if f'"status": {status}' in record.message]
        assert {line.levelname for line in lines} == {level}


def test_ready_names_a_scorer_whose_screen_is_down_but_no_address() -> None:
    screen = FailingScorer(name="served@10.0.0.1:80/v1", pace="word")
    scorer = ConfirmScorer([screen, FakeScorer(name="b")])
    with running(Babbler(0.1), scorer, **BACKTRACK) as server:
        screen.error = ScorerUnavailableError("down")
        assert server.ask("x y").status_code == 503
        assert server.http.get("/ready").json()["down"] == ["scorer confirm:served,b"]


def test_no_prompt_completion_or_key_is_logged_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    secret = "wombat"
    scorer, engine = FailingScorer(), FakeEngine("a numbat answers")
    bodies: list[dict[str, Any]] = [{}, {"stream": True}, {"temperature": secret}, {}]
    with caplog.at_level(logging.DEBUG), running(engine, scorer, keys=KEYS) as server:
        server.http.headers["authorization"] = f"Bearer {KEYS[0]}"
        for more in bodies:
            server.ask(f"the {secret} says", **more)
        scorer.error = ValueError(f"no score for the {secret}")
        server.ask(f"the {secret} says", tide={secret: 1})
        server.ask(f"the {secret} says")
        server.http.post(f"/{secret}?{secret}={KEYS[0]}")
        server.http.post(f"/v1alpha1/comments:analyze?key={KEYS[0]}", content=secret)
        figures = server.http.get("/metrics").text
    ours = [record for record in caplog.records if record.name.startswith(("tide", "uvicorn"))]
    assert len(ours) >= 9
    logged = "\n".join(record.getMessage() for record in ours)
    for word in (secret, "numbat", *KEYS):
        assert word not in logged + figures


@pytest.mark.parametrize("by", ["cause", "context"])
def test_a_log_line_names_what_led_to_an_error(by: str) -> None:
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        try:
            raise ValueError("this may quote a prompt")
        except ValueError as first:
            raise KeyError("this, too") from (first if by == "cause" else None)
    assert re.fullmatch(r"KeyError from ValueError at test_gate\.py:\d+", traced(caught.value))
