"""A pool of servers that do the same work: the least loaded gets the next request.

A server that fails leaves the pool, its work goes to the others, and it is tried again in the
background until it is fit to come back. Knows HTTP, and nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from tide.core.credentials import base_url
from tide.core.errors import EngineError, InputError
from tide.core.http import MIB, Client, Reply, ServerFailed
from tide.core.sanitize import logger

_log = logger(__name__)
_T = TypeVar("_T")
_Parsed = TypeVar("_Parsed", bound=BaseModel)

# Seconds
_LEAST_REST, _USUAL_REST, _LONGEST_REST = 0.1, 1.0, 30.0  # of a server that is overloaded
_FIRST_PROBE, _LONGEST_PAUSE = 0.5, 10.0

# HTTP
_OVERLOADED = 429
_FORBIDDEN = (401, 403)
# The time httpx takes for a request grows with the connections of its client: 5 ms with 256 of
# them, 0.5 ms with 4.
_CLIENT_REQUESTS = 4


class EndpointRefused(Exception):
    """A server does not accept a request that every server of its kind would not accept.

    status: of its HTTP answer; 0 without one.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Endpoint:
    """One server. load: units of work under way; answered: units it has done."""

    url: str
    load: int = 0
    answered: int = 0
    available: bool = False
    rests_until: float = 0.0
    reason: str = "not tried yet"


class EndpointPool:
    """Servers at `urls`. Must be used inside one event loop, and closed there.

    admit: looks at a server before its first use and before each return; raises ServerFailed or
    EndpointRefused if it cannot be used now. timeout: seconds that one request may take. deadline:
    seconds that work may take `in_time`. api_key: sent as a bearer token to all of them.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        admit: Callable[[Endpoint], Awaitable[None]],
        timeout: float,
        deadline: float,
        *,
        api_key: SecretStr | None = None,
    ) -> None:
        self.endpoints = [
            # With or without the `/v1` that API clients are given.
            Endpoint(base_url(url, "base_urls").removesuffix("/v1").rstrip("/"))
            for url in ([urls] if isinstance(urls, str) else urls)
        ]
        if not self.endpoints:
            raise InputError("base_urls: give at least one server (--base-url http://HOST:PORT)")
        if len({endpoint.url for endpoint in self.endpoints}) < len(self.endpoints):
            raise InputError("base_urls: the same server twice")
        self._admit = admit
        self._probes: set[asyncio.Task[None]] = set()
        self._clients: list[Client] = []
        self._timeout, self._deadline = min(timeout, deadline), deadline
        self._api_key = api_key

    async def start(self) -> None:
        """Look at all servers. Those that fail are tried again later; EngineError if all do."""
        await asyncio.gather(*(self._enter(endpoint) for endpoint in self.endpoints))
        if not self.available:
            raise EngineError(f"no server can be used: {self.reasons()}")
        for endpoint in self.endpoints:
            if not endpoint.available:
                self._leave(endpoint)

    async def run(self, units: int, work: Callable[[Endpoint], Awaitable[_T]]) -> _T:
        """`await work(server)` on the least loaded server, again elsewhere until one succeeds.

        units: how much work it is, for the balance. There is no end to the attempts (`in_time` sets
        one). Raises EngineError if a server refuses the request.
        """
        retrying = AsyncRetrying(retry=retry_if_exception_type(ServerFailed), wait=self._pause)
        return await retrying(self._attempt, units, work)

    async def in_time(self, work: Awaitable[_T]) -> _T:
        """The result of `work` at the pool. Raises EngineError where it is not there in time."""
        try:
            return await asyncio.wait_for(work, self._deadline)
        except (TimeoutError, asyncio.TimeoutError):
            raise EngineError(
                f"the servers did not finish within {self._deadline:g} s (deadline): "
                f"{self.reasons()}"
            ) from None

    @property
    def available(self) -> bool:
        """Whether a server can be used."""
        return any(endpoint.available for endpoint in self.endpoints)

    async def request(
        self,
        endpoint: Endpoint,
        path: str,
        kind: type[_Parsed],
        body: Any = None,
        *,
        limit: int = MIB,
    ) -> _Parsed:
        """The answer of `endpoint`, of at most `limit` bytes; a `body` is posted.

        Raises ServerFailed if the connection or the server failed, or the answer is no `kind`, and
        EndpointRefused if the server refuses the request.
        """
        method = "GET" if body is None else "POST"
        reply = await self._send(method, endpoint.url + path, body, limit)
        self._check(reply, path)
        return reply.parse(kind)

    async def stream(
        self,
        endpoint: Endpoint,
        path: str,
        kind: type[_Parsed],
        body: Any,
        *,
        limit: int = MIB,
    ) -> AsyncGenerator[_Parsed, None]:
        """As `request`, of a server that sends events: each as a `kind`, up to `[DONE]`."""
        client = self._client()
        async with aclosing(client.events(endpoint.url + path, body, limit=limit)) as events:
            async for event in events:
                if isinstance(event, Reply):
                    self._check(event, path)
                    raise ServerFailed("answered as a whole what it was to stream")
                if event == b"[DONE]":
                    return
                yield Reply(200, httpx.Headers(), event).parse(kind)
        raise ServerFailed("ended a stream in its middle")

    def _check(self, reply: Reply, path: str) -> None:
        """Raise what an answer that is not a success means."""
        status = reply.status
        if status == _OVERLOADED:
            seconds = min(max(reply.pause(_USUAL_REST), _LEAST_REST), _LONGEST_REST)
            raise ServerFailed(f"HTTP {status}", seconds)
        if reply.passing:
            raise ServerFailed(f"HTTP {status}: {reply.message()}")
        if status in _FORBIDDEN:
            raise EndpointRefused(f"wants another API key than it was sent (HTTP {status})", status)
        if not 200 <= status < 300:
            raise EndpointRefused(f"HTTP {status} to {path}: {reply.message()}", status)

    def reasons(self) -> str:
        """For each server, whether it is in use or why it is not."""
        return "; ".join(f"{endpoint.url}: {endpoint.reason}" for endpoint in self.endpoints)

    async def close(self) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        for client in self._clients:
            await client.aclose()

    async def _send(self, method: str, url: str, body: Any, limit: int) -> Reply:
        client = self._client()
        try:
            return await client.ask(method, url, body, limit=limit)
        except ServerFailed as error:
            if not error.broken:
                raise
        return await client.ask(method, url, body, limit=limit)  # on a connection that is not idle

    def _client(self) -> Client:
        client = next((c for c in self._clients if c.under_way < _CLIENT_REQUESTS), None)
        if client is None:
            key = self._api_key
            headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
            client = Client(self._timeout, headers=headers)
            self._clients.append(client)
        return client

    async def _attempt(self, units: int, work: Callable[[Endpoint], Awaitable[_T]]) -> _T:
        usable = self._usable()
        if not usable:
            raise ServerFailed("no server available")
        endpoint = min(usable, key=lambda endpoint: endpoint.load)
        endpoint.load += units
        began = asyncio.get_running_loop().time()
        try:
            result = await work(endpoint)
        except asyncio.CancelledError:  # at a deadline, most often
            waited = asyncio.get_running_loop().time() - began
            endpoint.reason = f"no answer within {waited:.3g} seconds"
            raise
        except ServerFailed as error:
            endpoint.reason = str(error)
            if error.pause:
                endpoint.rests_until = asyncio.get_running_loop().time() + error.pause
            elif endpoint.available:  # of many requests under way, the first to fail says so
                self._leave(endpoint)
            raise
        except EndpointRefused as error:
            raise EngineError(f"{endpoint.url}: {error}") from None
        finally:
            endpoint.load -= units
        endpoint.answered += units
        if endpoint.available:
            endpoint.reason = "in use"
        return result

    def _usable(self) -> list[Endpoint]:
        now = asyncio.get_running_loop().time()
        return [e for e in self.endpoints if e.available and e.rests_until <= now]

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next attempt: none while another server can take it at once."""
        if self._usable():
            return 0.0
        return wait_random_exponential(multiplier=0.1, max=2.0)(state)

    def _leave(self, endpoint: Endpoint) -> None:
        _log.warning("%s is out of the pool: %s", endpoint.url, endpoint.reason)
        endpoint.available = False
        probe = asyncio.create_task(self._probe(endpoint))
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _probe(self, endpoint: Endpoint) -> None:
        pause = _FIRST_PROBE
        while not endpoint.available:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            await self._enter(endpoint)
        _log.warning("%s is back in the pool", endpoint.url)

    async def _enter(self, endpoint: Endpoint) -> None:
        """Look at a server; it becomes available, or `reason` says why not."""
        try:
            await self._admit(endpoint)
        except (ServerFailed, EndpointRefused) as error:
            endpoint.reason = str(error)
        else:
            endpoint.available, endpoint.rests_until = True, 0.0
            endpoint.reason = "in use"
