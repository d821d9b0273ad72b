"""ASGI middleware that checks the key and size of every request, logs requests and counts them.

The whole body of a request is read before the app handles it, within a limit of size. A disconnect
of the client cancels the work, even before the first token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from weakref import WeakSet

from starlette.datastructures import Headers, MutableHeaders

from tide.core.errors import InputError
from tide.core.http import TRACE, ServerFailed, read_key
from tide.core.sanitize import logger
from tide.server.answers import Refused

if TYPE_CHECKING:
    from pydantic import SecretStr
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tide.server.monitor import Monitor
    from tide.server.policies import Policies, ServedPolicy

LOG = logger("tide.server")
KEYS = "TIDE_SERVE_KEYS"
# Of Anthropic's, Google's and Azure's clients.
KEY_HEADERS = ("x-api-key", "x-goog-api-key", "api-key")
_KEY_IN_ADDRESS = "/v1alpha1/"  # Google's clients put the key in the query
# Azure's paths of OpenAI's API; a deployment is a model, and so may have a name with slashes.
_AZURE = re.compile(r"/openai/(?:v1/|deployments/(.+?)/(?=(?:chat/)?[^/]+$))?(.*)")
# The files of the playground, by URL path.
PLAYGROUND = {"/": "index.html"} | {
    f"/{name}": name for name in ("playground.css", "playground.js", "plot.js", "words.js")
}
# Paths that need no key. The page of the playground asks its user for the key. Google's clients
# fetch the discovery document before they have one.
_OPEN = (*PLAYGROUND, "/health", "/ready", "/$discovery/rest")
_NUMBER = re.compile(r"[\w.-]{1,64}", re.ASCII)
_TRACED = ("traceparent", "tracestate")
_LEFT = 499  # nginx's status for a client that disconnected
# A body that is too long is read up to this multiple of the limit. If the server stopped reading
# at the limit, the client would see a broken connection instead of the error.
_PATIENCE = 4


def read_keys() -> list[SecretStr]:
    """Read the comma-separated keys of TIDE_SERVE_KEYS. Raises InputError for an invalid key."""
    keys = [read_key(KEYS, text) for text in os.environ.get(KEYS, "").split(",")]
    return [key for key in keys if key is not None]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str, keys: Sequence[object]) -> None:
    """Raise InputError if other machines can reach a server that has no keys."""
    if not is_loopback(host) and not keys:
        raise InputError(f"--host {host}: a server without a key must use 127.0.0.1; set {KEYS}")


@dataclass
class Visit:
    """A request on its way through the server.

    number: in the log and in `x-request-id`. policies: those that its key may use, the default
    first. logged: further fields of its line in the log. error: why it failed. ending: returns the
    end of its stream that clients get for an error. content_type: of the request as it was sent.
    """

    number: str
    policies: tuple[ServedPolicy, ...] = ()
    logged: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    ending: Callable[[Refused], str] = Refused.ending
    content_type: str | None = None

    def log_tokens(self, count: int) -> None:
        self.logged["tokens"] = self.logged.get("tokens", 0) + count


VISIT = "tide.visit"  # scope key of the request's Visit


class Gate:
    """Checks each request before `app` handles it.

    policies: contain the accepted keys. Without keys, only clients on this machine are served.
    """

    def __init__(self, app: ASGIApp, policies: Policies, monitor: Monitor) -> None:
        self._app, self._policies, self._monitor = app, policies, monitor
        self._limits, self._metrics = policies.limits, policies.metrics
        self._open: WeakSet[asyncio.Future[None]] = WeakSet()
        self._ending = False

    def end(self) -> None:
        """End all open requests with an error, and all forecasts, because the server stops."""
        self._ending = True
        self._monitor.end()
        for work in self._open:
            work.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, started, status, is_stream = Headers(scope=scope), time.monotonic(), 0, False
        method = scope["method"]
        scope, model = _standard(scope)
        request_id = headers.get("x-request-id", "")
        number = request_id if _NUMBER.fullmatch(request_id) else secrets.token_hex(8)
        scope[VISIT] = visit = Visit(number, content_type=headers.get("content-type"))
        # JSON is read whatever it is called: `curl -d` calls it a form. A browser lets pages of
        # other sites send what is not called JSON; their requests have an origin.
        if "origin" not in headers:
            MutableHeaders(scope=scope)["content-type"] = "application/json"
        TRACE.set({name: headers[name] for name in _TRACED if name in headers})

        async def sending(message: Message) -> None:
            nonlocal status, is_stream
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = Headers(raw=message["headers"]).get("content-type", "")
                is_stream = kind.startswith("text/event-stream")
                for name in (b"x-request-id", b"request-id"):  # OpenAI's and Anthropic's
                    message["headers"].append((name, number.encode()))
            elif message.get("body") and message["body"][:1] != b":":
                visit.logged.setdefault("first", round(time.monotonic() - started, 3))
            await send(message)

        ended = "left"
        self._metrics.in_flight.inc()
        try:
            self._check_key(scope, headers)
            scope["query_string"] = b""  # no route reads it; with a key in it, it would be traced
            body = await self._read(receive, headers, model)
            if body is not None and await self._work(scope, body, receive, sending):
                ended = "whole"
        except Exception as error:
            visit.error = error
            if status == 0:
                await Refused.of(error).response(scope["path"])(scope, receive, sending)
            elif is_stream and isinstance(error, Refused):
                last = visit.ending(error)
                await sending({"type": "http.response.body", "body": last.encode()})
        finally:
            self._metrics.in_flight.dec()
            if visit.error is not None:
                ended = traced(visit.error)
                if status == 200:  # a stream that broke off
                    status = Refused.of(visit.error).status
            elif ended == "left":
                status = _LEFT
            route = getattr(scope.get("route"), "path", "other")
            line = {"request": number, "method": method, "route": route, "status": status}
            self._log(line, time.monotonic() - started, {"ended": ended, **visit.logged})

    def _log(self, line: dict[str, Any], seconds: float, end: dict[str, Any]) -> None:
        """Count an answered request, and write its line in the log."""
        route, status = line["route"], line["status"]
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        if (policy := end.get("policy")) is not None:
            self._metrics.answers.labels(policy, end.get("key", ""), status).inc()
            if "first" in end:
                self._metrics.first_text.labels(policy).observe(end["first"])
        line |= {"seconds": round(seconds, 3), **end}
        LOG.log(logging.ERROR if status >= 500 else logging.INFO, json.dumps(line))

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        if scope["path"] in _OPEN:
            return
        table = self._policies.table  # the policy file may be reloaded meanwhile
        if not table.keys:
            client = (scope.get("client") or ("",))[0]
            # Refuse DNS rebinding, with which pages of another site could use this server.
            name = headers.get("host", "").rpartition("@")[2]
            name = re.sub(r":\d*$", "", name)
            if not (is_loopback(client) and is_loopback(name)):
                message = f"without a key, only clients on this machine are served; set {KEYS}"
                raise Refused(401, message, "authentication_error")
            scope[VISIT].policies = table.default
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = next((headers[name] for name in KEY_HEADERS if headers.get(name)), "")
        if not key and scope["path"].startswith(_KEY_IN_ADDRESS):
            key = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[0]
        sent_digest = digest_of_key(key.strip())
        # All keys are compared, so that the response time reveals nothing about them.
        matches = [
            known
            for known_digest, known in table.keys.items()
            if hmac.compare_digest(sent_digest, known_digest)
        ]
        if not matches:
            message = "the API key is missing or wrong"
            raise Refused(401, message, "authentication_error", code="invalid_api_key")
        ((scope[VISIT].logged["key"], scope[VISIT].policies),) = matches

    async def _read(self, receive: Receive, headers: Headers, model: str | None) -> bytes | None:
        """Return the body, or None after a disconnect. Raises Refused if it is too long.

        model: replaces that of the body, unless it is None.
        """
        encoding = headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise Refused(415, f"Content-Encoding: {encoding} is not supported; leave it out")
        limit, body, size = self._limits.max_body, bytearray(), 0
        more = True
        while more and size <= _PATIENCE * limit:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= limit:
                body += chunk
            more = message.get("more_body", False)
        if size > limit:
            raise Refused(413, f"more than {limit:,} bytes, the server's --max-body")
        return bytes(body) if model is None else _for_model(bytes(body), model)

    async def _work(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> bool:
        """Let the app answer. If the client disconnects first, cancel the work and return False."""
        unread, whole = [body], False

        async def replay() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.Event().wait()  # the gate itself listens for a disconnect
            raise AssertionError

        async def sending(message: Message) -> None:
            nonlocal whole
            # A client that stops reading must not keep its connection for ever.
            until = asyncio.get_running_loop().call_later(self._limits.request_seconds, work.cancel)
            try:
                await send(message)
            finally:
                until.cancel()
            whole = message["type"] == "http.response.body" and not message.get("more_body")

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        work = asyncio.ensure_future(self._app(scope, replay, sending))
        self._open.add(work)
        left = asyncio.ensure_future(gone())
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            if whole:  # the answer was sent, so a disconnect is normal
                await work
        finally:
            for task in (work, left):
                task.cancel()
            await asyncio.wait({work, left})
        if work.cancelled():
            if self._ending and not whole:
                message = "the server is shutting down"
                raise Refused(503, message, "server_error", code="shutting_down", again=True)
            return False
        work.result()
        return True


def _standard(scope: Scope) -> tuple[Scope, str | None]:
    """Return a request to Azure's API as one to OpenAI's, and its deployment, which is a model.

    HEAD becomes GET: uvicorn, which keeps its own scope, sends no body.
    """
    method, path, model = scope["method"], scope["path"], None
    if method == "HEAD":
        method = "GET"
    if (azure := _AZURE.fullmatch(path)) is not None:
        model, path = azure[1], f"/v1/{azure[2]}"
    return {**scope, "method": method, "path": path}, model


def _for_model(body: bytes, model: str) -> bytes:
    """Return a request with this model. What is no object is left for its route to refuse."""
    values = json_object(body)
    if values is None or values.get("model") == model:
        return body
    return json.dumps({**values, "model": model}).encode()


def json_object(body: bytes) -> dict[str, Any] | None:
    """Return a body as a JSON object; None if it is none."""
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def digest_of_key(key: str) -> bytes:
    """Return the SHA-256 digest of a key. Only digests are stored."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def traced(error: Exception) -> str:
    """Return the types and the source line of an error, and how a server failed, for the log.

    The message may quote a prompt, so it is added only if TIDE_DEBUG is set.
    """
    kinds: list[str] = []
    place = reason = ""
    cause: BaseException | None = error
    while cause is not None and len(kinds) < 5:
        kinds.append(type(cause).__name__)
        if isinstance(cause, ServerFailed) and not reason:
            reason = f": {cause.problem}"
        cause = cause.__cause__ or cause.__context__
    if error.__traceback__ is not None and not isinstance(error, Refused):
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f" at {os.path.basename(last.filename)}:{last.lineno}"
    if os.environ.get("TIDE_DEBUG"):
        reason = f": {error}"
    return f"{' from '.join(kinds)}{place}{reason}"
