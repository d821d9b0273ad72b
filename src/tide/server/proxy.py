"""Monitored requests of a gateway: they go on to its server, and the answers come back, unchanged.

Answers are scored afterwards, beside the stream of bytes.
"""

from __future__ import annotations

import json
from asyncio import to_thread
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from tide.core.errors import EngineError, InputError
from tide.core.http import MIB, EventParser, ServerFailed, read_reply
from tide.core.results import Usage
from tide.core.sanitize import without_keys
from tide.engines.openai.streams import Aside, Delta, end_of_server, read_event, whole_characters
from tide.engines.openai.words import words_of
from tide.server import messages, responses
from tide.server.answers import Refused
from tide.server.gate import KEY_HEADERS, VISIT, Visit, json_object, traced
from tide.server.monitor import Draft, Entry, Monitor
from tide.server.schemas import ChatRequest, CompletionRequest, Translated

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from tide.engines.openai.engine import OpenAIEngine
    from tide.server.generation import Serving
    from tide.server.policies import ServedPolicy

# Headers of one connection, which a proxy does not pass on (RFC 9110).
_OF_CONNECTIONS = frozenset((
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip
# A client's key is for this gateway; the server gets the gateway's own key.
_NOT_SENT = _OF_CONNECTIONS | {
    *("host", "content-length", "content-encoding", "accept-encoding", "expect", "cookie"),
    *("authorization", *KEY_HEADERS, "x-request-id"),
    "content-type",  # which the gate has changed
}
_NOT_RETURNED = _OF_CONNECTIONS | {"date", "server", "set-cookie", "x-request-id", "request-id"}
_NO_PATH = (404, 405, 501)  # statuses of a server that does not have a path
_TRANSLATED = "x-tide-translated"
# A longer answer is passed on, but not scored.
_LONGEST_SCORED = 16 * MIB


class Proxy:
    """Passes requests on to the server of `engine`, and scores the answers of monitored ones.

    The server of this gateway must run in the engine's event loop.
    """

    def __init__(self, engine: OpenAIEngine, serving: Serving, monitor: Monitor) -> None:
        self.upstream, self.monitor = engine.upstream, monitor
        self._engine, self._serving = engine, serving
        self._metrics = serving.metrics

    def policy_of(self, content: bytes, visit: Visit) -> ServedPolicy:
        """Return the policy that a request names. Raises Refused if its key may not use it."""
        values, name = json_object(content) or {}, None
        if isinstance(tide := values.get("tide"), dict):
            name = tide.get("policy")
        return self._serving.policy(
            name if isinstance(name, str) else None, visit, values.get("model")
        )

    async def unscored(self, request: Request) -> Response:
        """Pass a request on whose answer holds no text of a model."""
        # httpx would send `..` to a path above /v1/models.
        if ".." in unquote(request.url.path).split("/"):
            raise Refused(404, "Not Found")
        return PassedOn(self, request)

    def for_server(self, content: bytes) -> bytes:
        """Return the body for the server: without our field, with the server's name of a model.

        What is no object is left for the server to refuse.
        """
        values = json_object(content) or {}
        renamed = values.get("model") == self._serving.name != self._engine.name
        if not renamed and "tide" not in values:
            return content
        values.pop("tide", None)
        if renamed:
            values["model"] = self._engine.name
        return json.dumps(values).encode()

    async def score(self, monitored: MonitoredRequest) -> None:
        """Score an answer that was passed on."""
        policy, number = monitored.policy, monitored.visit.number
        try:
            request = monitored.door.kind.model_validate(json_object(monitored.content) or {})
            if isinstance(request, Translated):
                request = request.for_chat()
            calls = self._serving.calls(request, monitored.visit)
            answers = await to_thread(monitored.answers)
        except (ValidationError, Refused, InputError, ServerFailed) as error:
            self.monitor.fail(policy, number, 0, traced(error))
            return
        for choice, call in enumerate(calls):
            draft = answers.get(choice)
            if draft is None:
                self.monitor.fail(policy, number, choice, "the stream ended early")
                continue
            self._metrics.add(draft)
            self._metrics.unread_language(draft.text, policy.scorer)
            entry = Entry(policy, number, choice)
            self.monitor.begin(entry, call.prompt, draft, call.settings)


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Door:
    """A path whose answers are scored.

    read: yields the pieces of an answer in one event, or in a whole answer: the number of the
    choice, the piece, and the finish reason. ending: returns the end of a stream that fails.
    """

    kind: type[ChatRequest | CompletionRequest | Translated]
    read: Callable[[bytes], Iterator[tuple[int, Delta, str | None]]]
    ending: Callable[[Refused], str] = Refused.ending


def _read_choices(data: bytes, *, chat: bool) -> Iterator[tuple[int, Delta, str | None]]:
    event = read_event(data)
    event.check()
    for part in event.choices or ():
        yield int(part.index or 0), part.read(chat), part.finish_reason


_DOORS = {
    "/v1/completions": Door(CompletionRequest, partial(_read_choices, chat=False)),
    "/v1/chat/completions": Door(ChatRequest, partial(_read_choices, chat=True)),
    "/v1/responses": Door(responses.ResponsesRequest, responses.read),
    "/v1/messages": Door(messages.MessagesRequest, messages.read, messages.MessageShape.failed),
}


@dataclass
class MonitoredRequest:
    """A monitored request and its answer.

    translate: answers in place of a server that does not have the path. answer: the first bytes, up
    to the limit to score.
    """

    door: Door
    content: bytes
    policy: ServedPolicy
    visit: Visit
    translate: Handler | None = None
    is_stream: bool = False
    answer: bytearray = field(default_factory=bytearray)

    def answers(self) -> dict[int, Draft]:
        """Read the choices that have ended. Raises ServerFailed."""
        if len(self.answer) > _LONGEST_SCORED:
            raise ServerFailed(f"the answer has more than {_LONGEST_SCORED:,} bytes")
        events = [bytes(self.answer)]
        if self.is_stream:
            parser = EventParser()
            parsed = [*parser.add(events[0]), *parser.end()]
            events = [event for event in parsed if event != b"[DONE]"]
        pieces: defaultdict[int, list[str]] = defaultdict(list)
        asides: defaultdict[int, Aside] = defaultdict(partial(Aside, inline=False))
        reasons: dict[int, str] = {}
        for data in events:
            for index, delta, reason in self.door.read(data):
                pieces[index].append(delta.text)
                asides[index].add(delta)
                if reason:
                    reasons[index] = reason
        drafts = {}
        for index, reason in reasons.items():
            text, parts = whole_characters("".join(pieces[index])), asides[index].parts
            usage = Usage(0, len(words_of(text)) + parts.num_tokens)
            end = end_of_server(reason)
            drafts[index] = Draft(text, parts, end, self.is_stream, usage=usage)
        return drafts


class PassedOn(Response):
    """The server's answer, passed on byte for byte while it arrives."""

    background = None

    def __init__(
        self, proxy: Proxy, request: Request, monitored: MonitoredRequest | None = None
    ) -> None:
        self._proxy, self._request, self._monitored = proxy, request, monitored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, monitored = self._request, self._monitored
        translate = None if monitored is None else monitored.translate
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_SENT}
        if (content_type := scope[VISIT].content_type) is not None:
            headers["content-type"] = content_type
        content = self._proxy.for_server(await request.body())
        passing = self._proxy.upstream.passing(
            request.method, request.url.path, content or None, headers
        )
        is_whole = False
        try:
            async with passing as response:
                if translate is None or response.status_code not in _NO_PATH:
                    await self._send(response, send)
                    is_whole = True
                    return
        except ServerFailed as error:
            raise EngineError(f"{self._proxy.upstream.url}: {error}") from error
        finally:
            if monitored is not None and monitored.answer and (is_whole or monitored.is_stream):
                self._proxy.monitor.watch(self._proxy.score(monitored))
        answer = await translate(request)
        answer.headers[_TRANSLATED] = "/v1/chat/completions"
        await answer(scope, receive, send)

    async def _send(self, response: httpx.Response, send: Send) -> None:
        status, monitored = response.status_code, self._monitored
        failed = status >= 400
        headers = [
            (name.lower(), value)
            for name, value in response.headers.raw
            if name.lower().decode("latin-1") not in _NOT_RETURNED
        ]
        if monitored is not None:
            monitored.is_stream = "event-stream" in response.headers.get("content-type", "")
            mode = (b"x-tide-mode", b"monitor"), (b"x-tide-policy", monitored.policy.name.encode())
            headers += mode
        if failed:
            content = without_keys((await read_reply(response, MIB)).body)
            headers = [header for header in headers if header[0] != b"content-length"]
            headers.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if failed:
            await send({"type": "http.response.body", "body": content})
            return
        async for chunk in response.aiter_raw():
            if monitored is not None and len(monitored.answer) <= _LONGEST_SCORED:
                monitored.answer += chunk
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def monitored_route(proxy: Proxy) -> type[APIRoute]:
    """Return a class of routes that pass on the requests of monitored policies unread."""

    class Monitored(APIRoute):
        def get_route_handler(self) -> Handler:
            enforced = super().get_route_handler()

            async def handle(request: Request) -> Response:
                content, visit = await request.body(), request.scope[VISIT]
                policy = proxy.policy_of(content, visit)
                if policy.mode == "enforce":
                    return await enforced(request)
                door = _DOORS[self.path]
                visit.ending = door.ending
                translate = enforced if issubclass(door.kind, Translated) else None
                monitored = MonitoredRequest(door, content, policy, visit, translate)
                return PassedOn(proxy, request, monitored)

            return handle

    return Monitored
