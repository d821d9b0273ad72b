"""Local servers that speak the real wire formats, misbehave on demand and count their requests."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

# By name: HTTP status, error code and seconds of `Retry-After`.
REFUSALS: dict[str, tuple[Any, ...]] = {
    "burst": (429, "RESOURCE_EXHAUSTED"),
    "come back later": (429, "RESOURCE_EXHAUSTED", 86_400),
    "no credit": (429, "insufficient_quota"),
    "broken": (500,),
    "unavailable": (503,),
    "denied": (401,),
    "forbidden": (403, "PERMISSION_DENIED"),
    "not there": (404,),
    "gone": (410,),
    "too long": (413,),
    "bad request": (400, "invalid_request"),
    "bad key": (400, "API_KEY_INVALID"),
    "empty": (400, "COMMENT_EMPTY"),
    "failed inference": (424,),
}
# Changes a correct answer (JSON).
Change = Callable[[Any], Any]


def toxicity(text: str) -> float:
    """The score that these servers give a text; it depends on the text alone."""
    return (sum(map(ord, text)) * 7919 % 1000) / 1000


class Service(ThreadingHTTPServer):
    """answer: maps a request's number (from 0) to a method of `Handler`, a name of REFUSALS or a
    change of the correct answer. connections: their number.
    scored: how often each text got a correct answer.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.answer: Callable[[int], str | Change] = lambda number: "ok"
        self.connections = 0
        self.requests: list[dict[str, Any]] = []
        self.scored: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.elsewhere = "http://127.0.0.1:1"  # where redirects point to
        self.url = f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


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
        """Status and body of the answer to GET requests."""
        return 404, {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.requests)
            self.server.requests.append(
                {"path": self.path, "headers": dict(self.headers), "body": body}
            )
        answer = self.server.answer(number)
        if callable(answer):
            self.send(200, answer(self.scores(body)))
        elif answer in REFUSALS:
            self.refuse(*REFUSALS[answer])
        else:
            getattr(self, answer.replace(" ", "_"))(body)

    def send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self, status: int, code: str = "", pause: int = 0) -> None:
        # Some services quote the key in messages.
        message = f"refused: {self.path} {dict(self.headers)}"
        error = self.error(status, code) | {"message": message} if code else message
        self.send(status, {"error": error}, {"Retry-After": str(pause)} if pause else None)

    def error(self, status: int, code: str) -> dict[str, Any]:
        return {"code": code, "type": "x"}

    def scores(self, body: dict[str, Any]) -> Any:
        raise NotImplementedError

    def counted(self, texts: list[str]) -> None:
        with self.server.lock:
            self.server.scored.update(texts)

    def ok(self, body: dict[str, Any]) -> None:
        self.send(200, self.scores(body))

    def broken_if_rude(self, body: dict[str, Any]) -> None:
        if "rude" in json.dumps(body):
            self.refuse(500)
        else:
            self.ok(body)

    def bad_json_if_rude(self, body: dict[str, Any]) -> None:
        if "rude" in json.dumps(body):
            self.bad_json(body)
        else:
            self.ok(body)

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

    def redirect(self, body: dict[str, Any]) -> None:
        self.send(307, b"", {"Location": f"{self.server.elsewhere}{self.path}"})


class Perspective(Handler):
    """`comments:analyze`."""

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert urlsplit(self.path).path == "/v1alpha1/comments:analyze"
        assert parse_qs(urlsplit(self.path).query)["key"]
        text = body["comment"]["text"]
        self.counted([text])
        score = {"summaryScore": {"value": toxicity(text), "type": "PROBABILITY"}}
        return {
            "attributeScores": dict.fromkeys(body["requestedAttributes"], score),
            "languages": body["languages"],
            "detectedLanguages": ["en"],
        }

    def error(self, status: int, code: str) -> dict[str, Any]:
        where = "reason" if code.startswith("API") else "errorType"
        return {"code": status, "status": "INVALID_ARGUMENT", "details": [{where: code}]}


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
        self.counted(body["input"])
        usual = dict.fromkeys(self.CATEGORIES, 0.99) | dict.fromkeys(self.CATEGORIES[:4], 0.0)
        results = [
            {"flagged": False, "category_scores": usual | {"harassment": toxicity(text)}}
            for text in body["input"]
        ]
        return {"id": "modr-1", "model": body["model"], "results": results}


class VllmPooling(Handler):
    """vLLM's `/classify` (two classes)."""

    def about(self) -> tuple[int, Any]:
        if self.path != "/v1/models":
            return 404, {"detail": "Not Found"}
        return 200, {"object": "list", "data": [{"id": "some/model", "object": "model"}]}

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] == "some/model"
        assert self.path == "/classify"
        texts = body["input"]
        self.counted(texts)
        return {"object": "list", "data": [self.row(i, text) for i, text in enumerate(texts)]}

    def row(self, index: int, text: str) -> dict[str, Any]:
        score = toxicity(text)
        label = "toxic" if score > 0.5 else "neutral"
        return {"index": index, "label": label, "probs": [1 - score, score], "num_classes": 2}


class Tei(Handler):
    """`/predict` of a classifier with three labels; it refuses the same requests as the service."""

    LABELS = ("neutral", "toxic", "insult")
    kind: ClassVar[dict[str, Any]] = {
        "classifier": {"id2label": {str(i): name for i, name in enumerate(LABELS)}}
    }

    def about(self) -> tuple[int, Any]:
        assert self.path == "/info"
        return 200, {
            "model_id": "some/model", "model_sha": "0123456789abcdef", "model_dtype": "float32",
            "model_type": self.kind, "max_client_batch_size": 4, "version": "1.9.0",
        }  # fmt: skip

    def scores(self, body: dict[str, Any]) -> Any:
        assert self.path == "/predict"
        assert body["truncate"] is False
        assert len(body["inputs"]) <= 4
        # The service reads two strings in a list as a pair.
        assert all(isinstance(row, list) and len(row) == 1 for row in body["inputs"])
        texts = [texts_of_row[0] for texts_of_row in body["inputs"]]
        self.counted(texts)
        return [self.row(toxicity(text)) for text in texts]

    def row(self, score: float) -> list[dict[str, Any]]:
        shares = {"neutral": 1 - score, "toxic": score * 0.75, "insult": score * 0.25}
        rows = [{"label": name, "score": value} for name, value in shares.items()]
        return sorted(rows, key=lambda row: -row["score"])


@dataclass(frozen=True)
class Family:
    """before, after: the tokens that a guard writes before and after its verdict.

    toxic, safe: the tokens of these verdicts, with their shares of the toxic or safe probability.
    """

    before: tuple[str, ...]
    toxic: dict[str, float]
    safe: dict[str, float]
    after: tuple[str, ...] = ()


FAMILIES = {
    "llama-guard": Family(("\n\n",), {"unsafe": 1.0}, {"safe": 1.0}, ("\n", "S1")),
    "shieldgemma": Family((), {"Yes": 0.7, " Yes": 0.3}, {"No": 1.0}, (",", " it", " does")),
    "granite-guardian-3.3": Family(
        ("<think>", "\n", "</think>", "\n", "<", "score", ">"),
        {" yes": 1.0}, {" no": 0.9, "no": 0.1}, (" ", "</score>"),
    ),
    "granite-guardian-4": Family(
        ("<think>", "\n", "</think>", "\n", "<score>"), {"yes": 1.0}, {"no": 1.0}, ("</score>",)
    ),
    "wildguard": Family(("Harmful", " request:"), {" yes": 1.0}, {" no": 1.0}),
    "qwen3guard": Family(
        ("Safety", ":"), {" Unsafe": 0.6, " Controversial": 0.4}, {" Safe": 1.0},
        ("\n", "Categories", ":", " None"),
    ),
}  # fmt: skip


def share(text: str) -> float:
    """The probability of toxic verdicts among all verdicts."""
    return 0.01 + 0.98 * toxicity(text)


class GuardServer(Handler):
    """A guard over OpenAI's chat API, as vLLM serves one.

    family: whose words it answers with. A tenth of the probability goes to tokens of no verdict.
    """

    family = "llama-guard"

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["temperature"] == 0.0
        assert self.path == "/v1/chat/completions"
        assert body["logprobs"] is True
        content = body["messages"][0]["content"]
        numbered = re.search(r"text number \d+", content)  # in a prompt
        text = numbered[0] if numbered else content
        self.counted([text])
        tokens = [
            {
                "token": likeliest[0][0],
                "logprob": likeliest[0][1],
                "top_logprobs": [{"token": t, "logprob": p} for t, p in likeliest],
            }
            for likeliest in self.places(text)
        ]
        return {"choices": [{"index": 0, "logprobs": {"content": tokens}}]}

    def places(self, text: str) -> list[list[tuple[str, float]]]:
        """Tokens and log-probabilities, likeliest first."""
        family, p = FAMILIES[self.family], share(text)
        shares = {token: 0.9 * p * part for token, part in family.toxic.items()}
        shares |= {token: 0.9 * (1 - p) * part for token, part in family.safe.items()}
        verdict = sorted(({**shares, " I": 0.1}).items(), key=lambda each: -each[1])
        before = [[(token, 0.0)] for token in family.before]
        logs = [(token, math.log(part)) for token, part in verdict]
        return [*before, logs, *([(token, 0.0)] for token in family.after)]
