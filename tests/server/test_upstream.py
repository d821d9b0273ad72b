"""`tide serve` in front of a server that fails for a single request: other clients are served."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engines.openai.faults import FAULTS, STATUSES, TOLD, changed, raw
from tests.engines.openai.server import DONE, TextServer, data_of, told
from tests.fakes import FailingScorer
from tests.hostile import KEY
from tests.server.gateways import BAD, Serve, gateway
from tests.server.running import ASKED, Running, wait_until
from tide import Detoxifier
from tide.core.errors import CompletionError, ScorerUnavailableError

# These have tests of their own; a connection that hangs takes seconds.
NAMES = [name for name in FAULTS if name not in ("hangs", "HTTP 401", "HTTP 403")]


@pytest.fixture(scope="module")
def server(model_server: TextServer) -> Iterator[Running]:
    """A gateway whose engine sends the key `KEY`."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENAI_API_KEY", KEY)
        with gateway(model_server, lambda texts: [0.1] * len(texts)) as server:
            yield server


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_fails_alone(stream: bool, upstream: TextServer, server: Running) -> None:
    upstream.faults = {f"<{name}>": fault for name, fault in FAULTS.items()}
    began = time.monotonic()
    with ThreadPoolExecutor(len(NAMES)) as clients:
        asked = [
            clients.submit(server.ask, f"A <{name}> text", max_tokens=6, stream=stream)
            for name in NAMES
        ]
        while not all(request.done() for request in asked):
            assert server.http.get("/ready").status_code == 200
            assert server.ask("A kind text", max_tokens=6).status_code == 200
        for name, answer in zip(NAMES, asked, strict=True):
            response = answer.result()
            status, said = STATUSES.get(name, (0, None))
            error = response.json()["error"]
            assert response.status_code == (status if status >= 400 else 500)
            assert "x-should-retry" not in response.headers  # a cut stream may be whole next
            if status >= 400:
                assert error["message"][0] != "<"
                assert error["message"] in str(said)
            elif name in TOLD:
                assert error["message"] == "out of memory"
            else:
                assert error["code"] == "completion_error"
            sent = sum(f"<{name}>" in str(body) for body in upstream.requests)
            # The server may have closed an idle connection, so a broken one is tried twice.
            assert sent == 2 if name == "resets" else sent <= 5
    assert time.monotonic() - began < 30


PAUSE = {
    "retry-after": "Fri, 31 Dec 1999 23:59:59 GMT",
    "retry-after-ms": "1500",
    "x-ratelimit-remaining-tokens": "0",
    "x-should-retry": "true",
}
LIMITS = {
    "anthropic-ratelimit-input-tokens-reset": "2026-01-01T00:00:00Z",
    "x-ratelimit-limit-requests": "60",
    "retry-after": "3",
}
NOT_PASSED = {
    "x-ratelimit-reset-tokens": "words of a server",
    "x-ratelimit-remaining": "\u0661".encode().decode("latin-1"),  # a digit that is not ASCII
    "x-ratelimit-words-of-a-server": "1",
    "x-other": "1",
}


def slow_down(code: Any) -> dict[str, Any]:
    return {"error": {"message": "slow down", "type": "tokens", "param": None, "code": code}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "fault"),
    [
        pytest.param(
            429, "rate_limit", (429, slow_down("rate_limit"), PAUSE | NOT_PASSED), id="busy"
        ),
        pytest.param(503, "loading", (503, slow_down("loading"), PAUSE), id="loading"),
        pytest.param(429, 429, (200, slow_down(429)), id="status 200"),
        pytest.param(429, "429", (200, slow_down("429")), id="status 200 and a code as text"),
        # VLLM finds some faults of a request only after its stream has begun.
        pytest.param(400, 400, lambda _: told(slow_down(400)), id="event"),
    ],
)
def test_error_of_the_server_is_the_clients(
    status: int, code: Any, fault: Any, stream: bool, upstream: TextServer, server: Running
) -> None:
    """The server is asked once, since it may be busy."""
    upstream.faults = {"<refused>": fault}
    answer = server.ask("A <refused> text", max_tokens=6, stream=stream)
    assert (answer.status_code, answer.json()) == (status, slow_down(code))
    has_headers = isinstance(fault, tuple) and len(fault) > 2
    assert PAUSE.items() & answer.headers.items() == (PAUSE.items() if has_headers else set())
    assert not NOT_PASSED.keys() & answer.headers.keys()
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("mode", ["enforce", "monitor"])
@pytest.mark.parametrize("status", [401, 403])
def test_client_is_not_blamed_for_the_key_of_the_gateway(
    status: int, mode: Any, upstream: TextServer, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(upstream, mode=mode) as server:
        upstream.answer = lambda *_: (status, {"error": {"message": "Incorrect API key"}})
        answers = [server.post(path, body) for path, body in ASKED.items()]
        answers.append(server.post("/v1/embeddings", {"input": "x"}))
        answers.append(server.ask(stream=True))
        answers.append(server.http.get("/v1/models"))
    for answer in answers:
        assert answer.status_code == 502
        assert answer.headers["x-should-retry"] == "false"
        message = answer.json()["error"]["message"]
        assert f"refuses its key (HTTP {status})" in message
        assert "Incorrect API key" not in message
    lines = [text for text in caplog.messages if '"status": 502' in text]
    assert len(lines) == len(answers)
    assert all(f"rejects the API key, or requires one (HTTP {status})" in text for text in lines)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "passes"), [("A kind text.", True), ("A dull text.", False)])
def test_answer_that_is_not_streamed(
    text: str, passes: bool, stream: bool, upstream: TextServer, serve: Serve
) -> None:
    """The server's limits come with it, unless the server has written several answers."""
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
    headers = {"Content-Type": "application/json", **LIMITS, **NOT_PASSED}
    answer = 200, {"choices": [choice]}, headers
    upstream.answer = lambda path, _: answer if "chat" in path else None
    said = serve().chat(max_tokens=20, stream=stream)
    assert LIMITS.items() & said.headers.items() == (LIMITS.items() if passes else set())
    assert not NOT_PASSED.keys() & said.headers.keys()
    assert said.status_code == 200
    assert (text in said.text) is passes


@pytest.mark.parametrize("options", [{"timeout": 0.3}, {"deadline": 0.3}])
def test_server_that_is_silent_is_a_timeout(options: Any, upstream: TextServer) -> None:
    upstream.faults = {"<slow>": FAULTS["hangs"]}
    with gateway(upstream, **options) as server:
        answer = server.ask("A <slow> text", max_tokens=6)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")


QUOTED = {"message": "Failed to parse input at pos 12: so dull a call", "code": 500}  # llama.cpp
QUOTING: dict[str, Any] = {
    "status": (500, {"error": QUOTED}),
    "event": raw(data_of({"error": QUOTED}), DONE),
    "escapes": (500, {"error": {"message": 'raw=\'{"a": "du\\u006cl"}\''}}),  # Ollama
    "status of a wrong request": (400, {"error": QUOTED}),
    "type": (500, {"error": {"message": "failed", "type": "dull"}}),
    "page": (502, b"<html>dull</html>"),
    "pause": (429, {"error": QUOTED}, {"Retry-After": "17"}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", QUOTING)
def test_error_that_quotes_rejected_text(
    name: str, stream: bool, upstream: TextServer, serve: Serve
) -> None:
    upstream.faults = {"<quoted>": QUOTING[name]}
    status = {"status of a wrong request": 400, "page": 502, "pause": 429}.get(name, 500)
    answer = serve().ask("A <quoted> text", max_tokens=6, stream=stream)
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == ("17" if name == "pause" else None)
    assert answer.json()["error"] == {
        "message": f"the server failed (HTTP {status}); its message was withheld",
        "type": "server_error",
        "param": None,
        "code": "withheld",
    }


def test_error_that_quotes_rejected_text_in_a_stream(upstream: TextServer, serve: Serve) -> None:
    text = {"choices": [{"index": 0, "text": "The river is wide. It runs to the sea. And"}]}
    upstream.faults = {"<quoted>": lambda events: told(text, text, {"error": QUOTED})}
    upstream.pause = 0.3  # the sentence is given out before the error comes
    server = serve(strategy="backtrack:pace=word,lag=0")
    answer = server.ask("A <quoted> text", max_tokens=60, stream=True)
    assert "The river is wide." in answer.text
    assert "withheld" in answer.text
    assert BAD not in answer.text


def test_error_by_the_threshold_of_the_request(upstream: TextServer) -> None:
    upstream.faults = {"<quoted>": (400, {"error": {"message": "a middling text"}})}
    with gateway(upstream, lambda texts: [0.3] * len(texts), toxicity_threshold=0.5) as server:
        passed = server.ask("A <quoted> text", max_tokens=6)
        withheld = server.ask("A <quoted> text", max_tokens=6, tide={"toxicity_threshold": 0.2})
    assert passed.json()["error"]["message"] == "a middling text"
    assert withheld.json()["error"]["code"] == "withheld"


def test_error_of_the_server_is_withheld_while_the_scorer_is_down(
    upstream: TextServer, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.faults = {"<broken>": FAULTS["HTTP 500"]}
    scorer = FailingScorer(ScorerUnavailableError("down"))
    with caplog.at_level(logging.INFO, "tide"), gateway(upstream, scorer) as server:
        answer = server.ask("A <broken> text", max_tokens=6)
        wait_until(lambda: "CompletionError from ServerFailed" in caplog.text)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "withheld")
    assert "HTTP 500 to /v1/completions" in caplog.text
    assert "broken" not in caplog.text
    assert "index out of range" not in caplog.text


SAID = f"the key {KEY} is wrong \x1b[2J\r\nnext line \u202e"
ERRORS: dict[str, Any] = {
    "a message": (401, {"error": {"message": SAID}}),
    "a text": (500, SAID.encode()),
    "another field": (400, {"detail": [SAID]}),
    "an event": raw(b"data: " + json.dumps({"error": SAID}).encode() + b"\n\n", DONE),
    "a finish reason": changed(-1, finish_reason=SAID[:60]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_messages_of_upstream_are_sanitised(
    name: str,
    upstream: TextServer,
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TIDE_DEBUG", "1")
    upstream.faults = {"<broken>": ERRORS[name]}
    with caplog.at_level(logging.DEBUG):
        answer = server.ask("A <broken> text", max_tokens=6)
        detox = Detoxifier(server.engine, scorer=lambda texts: [0.1] * len(texts))
        (error,) = detox.map(["A <broken> text"], return_exceptions=True)
    assert isinstance(error, CompletionError)
    told = [str(error), "".join(traceback.format_exception(error)), answer.text]
    assert "***" in told[0]
    for text in [*told, *caplog.messages]:
        assert KEY not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
