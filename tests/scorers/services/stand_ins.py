"""Services that speak the real wire formats in this process, and misbehave on demand."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import httpx

from tide.scorers.guards import FAMILIES
from tide.scorers.remote import RemoteScorer
from tide.scorers.services import CATEGORIES

KEY = "AIza-Not_A-Real+Key/0123456789=="

# Changes a correct answer (JSON).
Change = Callable[[Any], Any]
# A status, and optionally an error code and seconds of `Retry-After`.
Refusal = tuple[Any, ...]


def toxicity(text: str) -> float:
    """The score that these servers give a text; it depends on the text alone."""
    return (sum(map(ord, text)) * 7919 % 1000) / 1000


class Service:
    """answer: maps a request's number (from 0) to "ok", another word, a refusal, or a change of the
    correct answer. fails_at: a text of the requests that get this answer; the others are "ok".
    scored: how often each text got a correct answer.
    """

    url = "http://service.test"
    about: ClassVar[dict[str, Any]] = {}  # answers to GET requests, by path

    def __init__(self) -> None:
        self.answer: Callable[[int], str | Refusal | Change] = lambda number: "ok"
        self.fails_at = ""
        self.requests: list[dict[str, Any]] = []
        self.transports: set[object] = set()
        self.scored: Counter[str] = Counter()

    def right_answer(self, request: httpx.Request) -> Any:
        self.path, self.headers = request.url.raw_path.decode(), request.headers
        return self.scores(json.loads(request.content))

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.path, self.headers = request.url.raw_path.decode(), request.headers
        if request.method == "GET":
            status = 200 if self.path in self.about else 404
            return httpx.Response(status, json=self.about.get(self.path))
        body = json.loads(request.content)
        answer = self.answer(len(self.requests))
        self.requests.append({"path": self.path, "headers": request.headers, "body": body})
        if self.fails_at not in json.dumps(body):
            answer = "ok"
        if callable(answer):
            return httpx.Response(200, json=answer(self.right_answer(request)))
        if isinstance(answer, tuple):
            return self._refuse(*answer)
        if answer == "slow":
            await asyncio.sleep(3600)
        if answer == "hang up":
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if answer == "bad json":
            return httpx.Response(200, content=b'{"results": ')
        if answer == "redirect":
            return httpx.Response(307, headers={"Location": "http://elsewhere.test"})
        return httpx.Response(200, json=self.right_answer(request))

    def _refuse(self, status: int, code: str = "", pause: int = 0) -> httpx.Response:
        # Some services quote the key in messages.
        message = f"refused: {self.path} {dict(self.headers)}"
        error = self.error(status, code) | {"message": message} if code else message
        headers = {"Retry-After": str(pause)} if pause else {}
        return httpx.Response(status, json={"error": error}, headers=headers)

    def error(self, status: int, code: str) -> dict[str, Any]:
        return {"code": code, "type": "x"}

    def scores(self, body: dict[str, Any]) -> Any:
        raise NotImplementedError


@contextmanager
def quick(url: str, key: str = KEY) -> Iterator[None]:
    """Inside, scorers have a key, ask quickly and three times, and those of services ask `url`."""
    variables = {"OPENAI_BASE_URL": url}
    for name in ("OPENAI", "GUARD", "CLASSIFIER"):
        variables[f"{name}_API_KEY"] = key
    for name in ("OPENAI_MODERATION", "GUARD", "CLASSIFIER"):
        variables[f"{name}_QPS"] = "1000"
    with (
        patch.dict(os.environ, variables),
        patch.multiple(RemoteScorer, attempts=3, backoff=0.001),
    ):
        yield


@contextmanager
def running(kind: type[Service]) -> Iterator[Service]:
    """Inside, a service replies to all requests instead of the network, and scorers are `quick`."""
    service = kind()

    async def handle(transport: object, request: httpx.Request) -> httpx.Response:
        service.transports.add(transport)
        answer = await service.handle(request)
        stream = httpx.ByteStream(answer.content)  # whole content cannot be read as a stream
        return httpx.Response(answer.status_code, headers=answer.headers, stream=stream)

    with (
        patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle),
        quick(service.url),
    ):
        yield service


class Moderation(Service):
    """`POST /moderations` of the OpenAI API, with a list of texts."""

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.path == "/moderations"
        assert self.headers["Authorization"].startswith("Bearer ")
        self.scored.update(body["input"])
        # Categories of other harms do not count.
        usual = dict.fromkeys(CATEGORIES, 0.0) | {"violence": 0.99}
        results = [
            {"flagged": False, "category_scores": usual | {"harassment": toxicity(text)}}
            for text in body["input"]
        ]
        return {"results": results}


class VllmPooling(Service):
    """vLLM's `/classify` (two classes)."""

    about: ClassVar[dict[str, Any]] = {"/v1/models": {"data": [{"id": "some/model"}]}}

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] == "some/model"
        assert self.path == "/classify"
        texts = body["input"]
        self.scored.update(texts)
        scores = enumerate(map(toxicity, texts))
        return {"data": [{"index": index, "probs": [1 - score, score]} for index, score in scores]}


class Tei(Service):
    """`/predict` of a classifier with three labels; it refuses the same requests as the service."""

    LABELS = ("neutral", "toxic", "insult")
    kind: ClassVar[dict[str, Any]] = {"classifier": {"id2label": dict(enumerate(LABELS))}}
    about: ClassVar[dict[str, Any]] = {
        "/info": {
            "model_id": "some/model", "model_sha": "0123456789abcdef", "model_type": kind,
            "max_client_batch_size": 4,
        }
    }  # fmt: skip

    def scores(self, body: dict[str, Any]) -> Any:
        assert self.path == "/predict"
        assert body["truncate"] is False
        assert len(body["inputs"]) <= 4
        texts = [text for (text,) in body["inputs"]]  # two strings in a list would be a pair
        self.scored.update(texts)
        return [self.row(toxicity(text)) for text in texts]

    def row(self, score: float) -> list[dict[str, Any]]:
        shares = {"neutral": 1 - score, "toxic": score * 0.75, "insult": score * 0.25}
        rows = [{"label": name, "score": value} for name, value in shares.items()]
        return sorted(rows, key=lambda row: -row["score"])


def share(text: str) -> float:
    """The probability of toxic verdicts among all verdicts."""
    return 0.01 + 0.98 * toxicity(text)


class GuardServer(Service):
    """A guard over OpenAI's chat API, as vLLM serves one.

    family: whose words it answers with. Each letter before the verdict is a token, since real
    tokens may end anywhere. A tenth of the probability goes to tokens of no verdict. Like
    llama.cpp, it writes the lowest number for the logarithm of zero.
    """

    family = "llama-guard"

    def scores(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["temperature"] == 0.0
        assert self.path == "/v1/chat/completions"
        assert body["logprobs"] is True
        content = body["messages"][0]["content"]
        numbered = re.search(r"text number \d+", content)  # in a prompt
        text = numbered[0] if numbered else content
        self.scored.update([text])
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
        lead = family.lead.replace("{judged}", "request")
        before = f"<think>\n</think>\n{lead}" if lead else "\n"
        words_of = Counter(family.verdicts.values())
        shares = {" I": 0.1}
        for word, weight in family.verdicts.items():
            part = 0.9 * (p if weight else 1 - p) / words_of[weight]
            shares |= {word: 0.4 * part, f" {word}": 0.6 * part}
        verdict = [(token, math.log(part)) for token, part in shares.items()]
        verdict.sort(key=lambda each: -each[1])
        verdict.append(("never", -3.4028234663852886e38))
        return [*([(letter, 0.0)] for letter in before), verdict, [("\n", 0.0)]]
