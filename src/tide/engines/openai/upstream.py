"""The server behind the engine: connections, retries, and errors of HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeVar
from urllib.request import getproxies

import anyio
import httpx
import tenacity
from pydantic import BaseModel, SecretStr

from tide.core.http import (
    MIB,
    Client,
    Reply,
    ServerFailed,
    ServerUnreachable,
    api_root,
    base_url,
    parsed,
    read_reply,
)

_T = TypeVar("_T")
_Parsed = TypeVar("_Parsed", bound=BaseModel)

# Seconds for which a server that cannot be reached is tried.
PATIENCE = 5.0
# Answers of a balancer while no server behind it can be reached. They are passed on at once.
_UNREACHABLE = (502, 503)
# Statuses with which a server refuses the key of a request.
FORBIDDEN = (401, 403)
_BUSY = (429, 504)  # answers of a server, or its balancer, that may answer later
_DONE, _END = b"[DONE]", 0.5  # seconds from `[DONE]` to the end of an answer
_Read = Reply | list[bytes]


class Upstream:
    """One server with OpenAI's API.

    url: its address, with or without `/v1`. timeout: seconds without an answer, or without the next
    event of a stream, after which a request fails. key: sent as a bearer token. patience: seconds
    for which a server that cannot be reached is tried. is_reached: whether the last request reached
    the server. losses: how often it became unreachable; afterwards, another server may answer.
    """

    def __init__(
        self, url: str, timeout: float, *, key: SecretStr | None = None, patience: float = PATIENCE
    ) -> None:
        address = base_url(url, "base_url")
        self.url = address.removesuffix("/v1")
        self.is_reached, self.losses = True, 0
        self._api = api_root(address)
        self._patience = patience
        self._client = Client(timeout, key=key, transport=_transport())

    @asynccontextmanager
    async def passing(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Pass a request of a client on; its answer, of any status, is read as it arrives.

        Raises ServerFailed if the server refuses the key, which is not the client's.
        """
        async with AsyncExitStack() as stack:

            async def begin() -> httpx.Response:
                passing = self._client.passing(method, self._address(path), content, headers)
                return await stack.enter_async_context(passing)

            response = await self._connected(begin)
            if response.status_code in FORBIDDEN:
                _raise_for_status(await read_reply(response, MIB), path)
            yield response

    async def request(self, path: str, kind: type[_Parsed], body: Any = None) -> _Parsed:
        """GET, or POST `body`; return the answer, parsed as `kind`.

        Raises ServerUnreachable if the server cannot be reached, ServerFailed for other failures.
        """

        async def ask() -> Reply:
            method = "GET" if body is None else "POST"
            reply = await self._client.ask(method, self._address(path), body)
            _raise_for_status(reply, path)
            return reply

        return parsed((await self._connected(ask)).body, kind)

    async def stream(
        self, path: str, body: Any, *, limit: int, until: float
    ) -> AsyncGenerator[list[bytes], None]:
        """Like `request`, for a stream: yields the events before `[DONE]` that arrived together.

        until: see `Client.events`.
        """

        async def begin() -> tuple[AsyncGenerator[_Read, None], _Read | None]:
            reads = self._client.events(self._address(path), body, limit=limit, until=until)
            events = await anext(reads, None)
            if isinstance(events, Reply):
                await reads.aclose()
                _raise_for_status(events, path)
                return reads, [events.body]  # an answer as a whole, or an error
            return reads, events

        reads, events = await self._connected(begin)
        async with aclosing(reads):
            while events is not None and not isinstance(events, Reply):
                if _DONE in events:
                    yield events[: events.index(_DONE)]
                    # An answer that was read to its end leaves its connection open for the next.
                    with anyio.move_on_after(_END):
                        await anext(reads, None)
                    return
                yield events
                events = await anext(reads, None)

    async def look(self) -> None:
        """Find out whether the server can be reached now."""
        try:
            reply = await self._client.ask("GET", self._address("/v1/models"))
            _raise_for_status(reply, "/v1/models")
        except ServerFailed as error:
            self._note(not isinstance(error, ServerUnreachable))
        else:
            self._note(True)

    async def close(self) -> None:
        await self._client.aclose()

    async def _connected(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `ask`, which is repeated while no connection can be made.

        It is also repeated once if a connection broke: the server may have closed an idle one.
        """
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_unconnected),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
            stop=tenacity.stop_after_delay(self._patience),
            reraise=True,
        )
        try:
            try:
                answer: _T = await retrying(ask)
            except ServerFailed as error:
                if not error.broken:
                    raise
                answer = await retrying(ask)
        except ServerFailed as error:
            self._note(not isinstance(error, ServerUnreachable))
            raise
        self._note(True)
        return answer

    def _note(self, is_reached: bool) -> None:
        self.losses += self.is_reached and not is_reached
        self.is_reached = is_reached

    def _address(self, path: str) -> str:
        """Return the URL of a path; paths of the API begin with `/v1/`."""
        if path.startswith("/v1/"):
            return self._api + path.removeprefix("/v1")
        return self.url + path


def may_pass(error: ServerFailed) -> bool:
    """Whether a failure tells nothing of what the server can do."""
    return isinstance(error, ServerUnreachable) or error.status in _BUSY


def _is_unconnected(error: BaseException) -> bool:
    return isinstance(error, ServerUnreachable) and not error.status


def _raise_for_status(reply: Reply, path: str) -> None:
    """Raise ServerFailed for a status other than success."""
    status = reply.status
    if 200 <= status < 300:
        return
    problem = f"HTTP {status} to {path}"
    if status in FORBIDDEN:
        problem = f"rejects the API key, or requires one (HTTP {status})"
    kind = ServerUnreachable if status in _UNREACHABLE else ServerFailed
    raise kind(problem, reply.message(), status=status, reply=reply)


def _transport() -> httpx.AsyncBaseTransport | None:
    """Return connections by aiohttp, or None for those of httpx.

    aiohttp belongs to the extra `gateway`. It does not know all the proxies that httpx takes from
    the environment.
    """
    proxies = getproxies()
    if any(proxies.get(scheme) for scheme in ("http", "https", "all")):
        return None
    try:
        from tide.engines.openai.connections import Connections  # noqa: PLC0415  (imports aiohttp)
    except ImportError:
        return None
    return Connections()
