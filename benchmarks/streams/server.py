"""A scripted server with OpenAI's API, and a scorer, which record what they were asked, and when.

The scorer speaks text-embeddings-inference (`/predict`; `--scorer classifier:URL#toxic` of TIDE)
and litellm's generic guardrail.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

BAD = "idiot"  # the scorer fails texts with this word
BRITTLE = "brittle"  # the scorer itself fails at texts with this word
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
DONE = b"data: [DONE]\n\n"
SCORING = 0.03  # seconds that a score takes
PROBED = " It is a fine day."  # the answer to requests that belong to no case


@dataclass(frozen=True)
class Usage:
    """A step that writes the usage, if the request asks for it."""


@dataclass(frozen=True)
class Cut:
    """A step that breaks the connection."""


@dataclass(frozen=True)
class Status:
    """A step that refuses a request."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)


# What is done next: write these bytes, wait for these seconds, or one of the above.
Step = bytes | float | Usage | Cut | Status


@dataclass
class Heard:
    """A request of a case. wrote: each write, with its time. left: when its reader left."""

    body: dict[str, Any]
    wrote: list[tuple[float, bytes]] = field(default_factory=list)
    left: float | None = None


@dataclass(frozen=True)
class Score:
    """A scored text. ended: when the score was given."""

    text: str
    ended: float
    passed: bool


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def choice_event(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
    """Return a chunk of an answer to a chat."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, **more}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "scripted",
            "choices": [choice],
        }
    )


ROLE = choice_event({"role": "assistant", "content": ""})


@contextmanager
def listening(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an application in a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    with socket.create_server((host, port), backlog=512) as listener:
        run = server.serve(sockets=[listener])
        thread = threading.Thread(target=asyncio.run, args=(run,), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


class ScriptedServer:
    """Answers request `number` by the steps of `scripts[number]`, and scores texts.

    A script that is a list of lists has the steps of the first, second, ... request of its case;
    the last is repeated. heard, scored: what was asked so far.
    """

    def __init__(self) -> None:
        self.scripts: dict[int, list[list[Step]]] = {}
        self.heard: dict[int, list[Heard]] = {}
        self.scored: list[Score] = []
        self.numbers = itertools.count(1)
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/info", self._info),
                Route("/predict", self._predict, methods=["POST"]),
                Route("/beta/litellm_basic_guardrail_api", self._guard, methods=["POST"]),
            ]
        )

    @contextmanager
    def listening(self, host: str, port: int) -> Iterator[None]:
        with listening(self.app, host, port) as self.url:
            yield

    # The model

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        asked = [m["content"] for m in body.get("messages", []) if m["role"] == "user"]
        number = re.search(r"\((\d+)\)$", str(asked[-1])) if asked else None
        if number is None or int(number[1]) not in self.scripts:
            return self._probed(body)
        heard = self.heard.setdefault(int(number[1]), [])
        scripts = self.scripts[int(number[1])]
        steps = scripts[min(len(heard), len(scripts) - 1)]
        heard.append(Heard(body))
        if isinstance(first := steps[0], Status):
            error = {"message": "the scripted server refuses this", "type": "x", "code": "refused"}
            return JSONResponse({"error": error}, first.code, first.headers)
        return StreamingResponse(self._write(heard[-1], steps), media_type="text/event-stream")

    async def _write(self, heard: Heard, steps: list[Step]) -> AsyncIterator[bytes]:
        has_ended = False
        try:
            for step in steps:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, Cut):
                    await asyncio.sleep(0.05)  # what was written shall arrive
                    raise ConnectionError
                elif isinstance(step, bytes):
                    heard.wrote.append((time.monotonic(), step))
                    yield step
                elif isinstance(step, Usage) and heard.body.get("stream_options"):
                    usage = event({"id": "chatcmpl-1", "choices": [], "usage": USAGE})
                    heard.wrote.append((time.monotonic(), usage))
                    yield usage
            has_ended = True
        except ConnectionError:
            has_ended = True
            raise
        finally:
            if not has_ended:
                heard.left = time.monotonic()

    def _probed(self, body: dict[str, Any]) -> Response:
        """Answer a request of a gateway that finds out what its server can do."""
        is_chat = "messages" in body
        if not body.get("stream"):
            message = {"message": {"role": "assistant", "content": PROBED}}
            choice = {
                "index": 0,
                "finish_reason": "stop",
                **(message if is_chat else {"text": PROBED}),
            }
            return JSONResponse({"id": "1", "choices": [choice], "usage": USAGE})
        end = {"index": 0, "finish_reason": "stop"}
        part: dict[str, Any] = {"delta": {"content": PROBED}} if is_chat else {"text": PROBED}
        return Response(event({"choices": [end | part]}) + DONE, media_type="text/event-stream")

    # The scorer

    async def _info(self, _: Request) -> Response:
        labels = {"0": "fine", "1": "toxic"}
        return JSONResponse({"model_id": "kit", "model_type": {"classifier": {"id2label": labels}}})

    async def _predict(self, request: Request) -> Response:
        rows = []
        for passed in await self._score([text for (text,) in (await request.json())["inputs"]]):
            if passed is None:
                return JSONResponse({"error": "the scripted scorer fails"}, 500)
            toxic = 0.0 if passed else 1.0
            rows.append(
                [{"label": "toxic", "score": toxic}, {"label": "fine", "score": 1.0 - toxic}]
            )
        return JSONResponse(rows)

    async def _guard(self, request: Request) -> Response:
        body = await request.json()
        texts = [*(body.get("texts") or []), json.dumps(body.get("tool_calls") or [])]
        if body.get("input_type") == "request":
            return JSONResponse({"action": "NONE"})
        verdicts = await self._score(texts)
        if None in verdicts:
            return JSONResponse({"error": "the scripted scorer fails"}, 500)
        if all(verdicts):
            return JSONResponse({"action": "NONE"})
        return JSONResponse({"action": "BLOCKED", "blocked_reason": "rude"})

    async def _score(self, texts: list[str]) -> list[bool | None]:
        """Return for each text whether it passes, or None for a failure."""
        await asyncio.sleep(SCORING)
        verdicts = [None if BRITTLE in text else BAD not in text.casefold() for text in texts]
        for text, passed in zip(texts, verdicts, strict=True):
            self.scored.append(Score(text, time.monotonic(), passed is True))
        return verdicts
