"""Local servers that speak the real wire formats, misbehave on demand and count what they get."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tide.scorers.services import base as remote
from tide.scorers.services.base import Pace


def toxicity(text: str) -> float:
    """What these servers answer: any text has its own score."""
    return (sum(map(ord, text)) * 7919 % 1000) / 1000


class Service(ThreadingHTTPServer):
    """answer: what to do with request number n (from 0): a handler of `Handler`, by name.

    arrivals: when requests came. connections: how many were made.
    scored: how often each text got a good answer.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.answer: Callable[[int], str] = lambda number: "ok"
        self.arrivals: list[float] = []
        self.connections = 0
        self.requests: list[dict[str, Any]] = []
        self.scored: Counter[str] = Counter()
        self.clock: Callable[[], float] = time.monotonic
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.elsewhere = "http://127.0.0.1:1"  # where redirects point to
        self.url = f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def most_in(self, seconds: float) -> int:
        """The largest number of requests that came within so many seconds."""
        times = sorted(self.arrivals)
        return max(sum(start <= t <= start + seconds for t in times) for start in times)


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def without_waiting(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a remote scorer's pauses pass at once, on a clock by which the service sees requests."""
    clock = service.clock = Clock()

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setitem(remote._PACES, service.url.removeprefix("http://"), Pace(1.0, clock))


@contextmanager
def running(handler: type[Handler]) -> Iterator[Service]:
    service = Service(handler)
    thread = threading.Thread(target=service.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        service.closing.set()
        service.shutdown()
        thread.join()
        service.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Service

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send(*self.about())

    def about(self) -> tuple[int, Any]:
        """What is answered to questions about the server itself: status and body."""
        return 404, {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.arrivals)
            self.server.arrivals.append(self.server.clock())
            self.server.requests.append(
                {"path": self.path, "headers": dict(self.headers), "body": body}
            )
        getattr(self, self.server.answer(number).replace(" ", "_"))(body)

    def send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        raise NotImplementedError

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def ok(self, body: dict[str, Any]) -> None:
        self.send(200, self.scores(body))

    def burst(self, body: dict[str, Any]) -> None:
        self.error(429, "RESOURCE_EXHAUSTED")

    def come_back_later(self, body: dict[str, Any]) -> None:
        self.error(429, "RESOURCE_EXHAUSTED", {"Retry-After": "86400"})

    def broken(self, body: dict[str, Any]) -> None:
        self.send(500, b"<html>oops</html>")

    def unavailable(self, body: dict[str, Any]) -> None:
        self.send(503, b"")

    def slow(self, body: dict[str, Any]) -> None:
        self.server.closing.wait()
        self.close_connection = True

    def half(self, body: dict[str, Any]) -> None:
        content = json.dumps(self.scores(body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.close_connection = True

    def hang_up(self, body: dict[str, Any]) -> None:
        self.close_connection = True

    def bad_json(self, body: dict[str, Any]) -> None:
        self.send(200, b'{"attributeScores": ')

    def no_score(self, body: dict[str, Any]) -> None:
        self.send(200, {})

    def redirect(self, body: dict[str, Any]) -> None:
        self.send(307, b"", {"Location": f"{self.server.elsewhere}{self.path}"})

    def denied(self, body: dict[str, Any]) -> None:
        # Some servers quote the key that they refuse.
        self.send(401, {"error": str(dict(self.headers))})

    def not_there(self, body: dict[str, Any]) -> None:
        self.send(404, {"detail": "Not Found"})

    def bad_request(self, body: dict[str, Any]) -> None:
        self.send(400, {"error": {"message": str(body)}})

    def too_long(self, body: dict[str, Any]) -> None:
        self.send(413, {"error": str(body), "error_type": "Validation"})


class Perspective(Handler):
    """`comments:analyze`. Errors look as the service's own do."""

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert urlsplit(self.path).path == "/v1alpha1/comments:analyze"
        assert parse_qs(urlsplit(self.path).query)["key"]
        text = body["comment"]["text"]
        with self.server.lock:
            self.server.scored[text] += 1
        score = {"value": toxicity(text), "type": "PROBABILITY"}
        return {
            "attributeScores": {
                name: {"summaryScore": score} for name in body["requestedAttributes"]
            },
            "languages": body["languages"],
            "detectedLanguages": ["en"],
        }

    def error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        detail = {
            "@type": "type.googleapis.com/google.commentanalyzer.v1alpha1.Error",
            "errorType": code,
        }
        # The real service quotes the key in some messages.
        message = f"refused: {self.path}"
        error = {"code": status, "message": message, "status": code, "details": [detail]}
        self.send(status, {"error": error}, headers)

    def empty(self, body: dict[str, Any]) -> None:
        self.error(400, "COMMENT_EMPTY")

    def empty_if_dots(self, body: dict[str, Any]) -> None:
        if set(body["comment"]["text"]) <= set(". "):
            self.empty(body)
        else:
            self.ok(body)

    def too_long(self, body: dict[str, Any]) -> None:
        self.error(400, "COMMENT_TOO_LONG")

    def language(self, body: dict[str, Any]) -> None:
        self.error(400, "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE")

    def bad_key(self, body: dict[str, Any]) -> None:
        self.send(400, {"error": {"status": "INVALID_ARGUMENT", "message": self.path,
                                  "details": [{"reason": "API_KEY_INVALID"}]}})  # fmt: skip

    def forbidden(self, body: dict[str, Any]) -> None:
        self.error(403, "PERMISSION_DENIED")

    def missing(self, body: dict[str, Any]) -> None:
        self.send(404, b"not here")

    def gone(self, body: dict[str, Any]) -> None:
        self.send(410, b"gone")

    def no_score(self, body: dict[str, Any]) -> None:
        self.send(200, {"attributeScores": {}})

    def out_of_range(self, body: dict[str, Any]) -> None:
        self.send(200, {"attributeScores": {"TOXICITY": {"summaryScore": {"value": 1.7}}}})


class Moderation(Handler):
    """`POST /moderations` of the OpenAI API, with a list of texts."""

    CATEGORIES = (
        "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit",
        "illicit/violent", "self-harm", "self-harm/instructions", "self-harm/intent", "sexual",
        "sexual/minors", "violence", "violence/graphic",
    )  # fmt: skip

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.path == "/moderations"
        assert self.headers["Authorization"].startswith("Bearer ")
        results = []
        for text in body["input"]:
            with self.server.lock:
                self.server.scored[text] += 1
            scores = dict.fromkeys(self.CATEGORIES, 0.99)
            scores.update(dict.fromkeys(self.CATEGORIES[:4], 0.0), harassment=toxicity(text))
            results.append({
                "flagged": False,
                "categories": dict.fromkeys(self.CATEGORIES, False),
                "category_scores": scores,
                "category_applied_input_types": {name: ["text"] for name in self.CATEGORIES},
            })  # fmt: skip
        return {"id": "modr-1", "model": body["model"], "results": results}

    def error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        # The real service quotes the key in its messages.
        message = f"refused: {self.headers['Authorization']}"
        self.send(status, {"error": {"message": message, "code": code, "type": "x"}}, headers)

    def no_credit(self, body: dict[str, Any]) -> None:
        self.error(429, "insufficient_quota")

    def bad_key(self, body: dict[str, Any]) -> None:
        self.error(401, "invalid_api_key")

    def bad_request(self, body: dict[str, Any]) -> None:
        self.error(400, "invalid_request")

    def too_few(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        self.send(200, answer | {"results": answer["results"][1:]})

    def one_row_lacks_one(self, body: dict[str, Any]) -> None:
        answer = self.scores(body)
        del answer["results"][-1]["category_scores"]["hate"]
        self.send(200, answer)
