"""A pool of servers that do the same work: the least loaded gets the next request.

A server that fails leaves the pool, its work goes to the others, and it is tried again in the
background until it is fit to come back. Knows HTTP, and nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from tide.errors import EngineError, InputError, first_line
from tide.foreign import logger

_log = logger(__name__)
_T = TypeVar("_T")

# Seconds
_CONNECT = 5.0
_LONGEST_REST = 30.0  # that a server may ask for
_FIRST_PROBE, _LONGEST_PAUSE = 0.5, 10.0
_KEEP_ALIVE = 3.0  # vLLM closes what was idle for 5

# HTTP
_OVERLOADED = 429
_SERVER_ERROR = 500
_FORBIDDEN = (401, 403)
# What servers and the proxies before them say of a state that passes.
_PASSING = (408, 425, _OVERLOADED)
# The time httpx takes for a request grows with the connections of its client: 5 ms with 256 of
# them, 0.5 ms with 4.
_CLIENT_REQUESTS = 4
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


class EndpointFailed(Exception):
    """A server could not be used this time; the same request may succeed at another."""


class EndpointRefused(Exception):
    """A server does not accept a request that every server of its kind would not accept."""


class _Overloaded(EndpointFailed):
    """The server is well but asks to be left alone for `seconds`."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds


@dataclass
class Endpoint:
    """One server. load: units of work under way; answered: units it has done."""

    url: str
    load: int = 0
    answered: int = 0
    available: bool = False
    rests_until: float = 0.0
    reason: str = "not tried yet"


@dataclass
class _Client:
    http: httpx.AsyncClient
    requests: int = 0


class EndpointPool:
    """Servers at `urls`. Must be used inside one event loop, and closed there.

    admit: looks at a server before its first use and before each return; raises EndpointFailed or
    EndpointRefused if it cannot be used now. timeout: seconds that one request may take. api_key:
    sent as a bearer token to all of them.
    """

    def __init__(
        self,
        urls: Sequence[str],
        admit: Callable[[Endpoint], Awaitable[None]],
        *,
        timeout: float,
        api_key: str | None = None,
    ) -> None:
        self.endpoints = [Endpoint(_checked_url(url)) for url in urls]
        if not self.endpoints:
            raise InputError("base_urls: give at least one server (--base-url http://HOST:PORT)")
        if len({endpoint.url for endpoint in self.endpoints}) < len(self.endpoints):
            raise InputError("base_urls: the same server twice")
        self._admit = admit
        self._probes: set[asyncio.Task[None]] = set()
        self._clients: list[_Client] = []
        self._client_options: dict[str, Any] = {
            "headers": {} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            "timeout": httpx.Timeout(timeout, connect=min(timeout, _CONNECT)),
            "limits": httpx.Limits(keepalive_expiry=_KEEP_ALIVE),
            "verify": httpx.create_ssl_context(),
        }

    async def start(self) -> None:
        """Look at all servers. Those that fail are tried again later; EngineError if all do."""
        await asyncio.gather(*(self._enter(endpoint) for endpoint in self.endpoints))
        if not any(endpoint.available for endpoint in self.endpoints):
            raise EngineError(f"no server can be used: {self.reasons()}")
        for endpoint in self.endpoints:
            if not endpoint.available:
                self._leave(endpoint)

    async def run(self, units: int, work: Callable[[Endpoint], Awaitable[_T]]) -> _T:
        """`await work(server)` on the least loaded server, again elsewhere until one succeeds.

        units: how much work it is, for the balance. There is no end to the attempts: put a time
        limit around the call. Raises EngineError if a server refuses the request.
        """
        retrying = AsyncRetrying(retry=retry_if_exception_type(EndpointFailed), wait=self._pause)
        return await retrying(self._attempt, units, work)

    async def request(self, endpoint: Endpoint, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer of `endpoint`.

        Raises EndpointFailed if the connection or the server failed, and EndpointRefused if the
        server refuses the request.
        """
        try:
            response = await self._send(method, endpoint.url + path, body)
        except httpx.RequestError as error:
            raise EndpointFailed(_described(error)) from error
        status = response.status_code
        if status == _OVERLOADED:
            raise _Overloaded(f"HTTP {status}", _retry_after(response))
        if status >= _SERVER_ERROR or status in _PASSING:
            raise EndpointFailed(f"HTTP {status}: {_message(response)}")
        if status in _FORBIDDEN:
            raise EndpointRefused(f"wants another API key than it was sent (HTTP {status})")
        if not response.is_success:
            raise EndpointRefused(f"HTTP {status} to {path}: {_message(response)}")
        try:
            return response.json()
        except ValueError as error:
            raise EndpointFailed("answered with something that is not JSON") from error

    def reasons(self) -> str:
        """For each server, whether it is in use or why it is not."""
        return "; ".join(f"{endpoint.url}: {endpoint.reason}" for endpoint in self.endpoints)

    async def close(self) -> None:
        for probe in self._probes:
            probe.cancel()
        await asyncio.gather(*self._probes, return_exceptions=True)
        for client in self._clients:
            await client.http.aclose()

    async def _send(self, method: str, url: str, body: Any) -> httpx.Response:
        client = next((c for c in self._clients if c.requests < _CLIENT_REQUESTS), None)
        if client is None:
            client = _Client(httpx.AsyncClient(**self._client_options))
            self._clients.append(client)
        client.requests += 1
        try:
            try:
                return await client.http.request(method, url, json=body)
            except _BROKEN:  # most often an idle connection that the server was just closing
                return await client.http.request(method, url, json=body)
        finally:
            client.requests -= 1

    async def _attempt(self, units: int, work: Callable[[Endpoint], Awaitable[_T]]) -> _T:
        usable = self._usable()
        if not usable:
            raise EndpointFailed("no server available")
        endpoint = min(usable, key=lambda endpoint: endpoint.load)
        endpoint.load += units
        try:
            result = await work(endpoint)
        except _Overloaded as error:
            endpoint.rests_until = asyncio.get_running_loop().time() + error.seconds
            endpoint.reason = str(error)
            raise
        except EndpointFailed as error:
            endpoint.reason = str(error)
            if endpoint.available:  # of many requests under way, the first to fail says so
                self._leave(endpoint)
            raise
        except EndpointRefused as error:
            raise EngineError(f"{endpoint.url}: {error}") from error
        finally:
            endpoint.load -= units
        endpoint.answered += units
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
        except (EndpointFailed, EndpointRefused) as error:
            endpoint.reason = str(error)
        else:
            endpoint.available, endpoint.rests_until = True, 0.0
            endpoint.reason = "in use"


def _checked_url(url: str) -> str:
    """Scheme, host, port and path of a server, without the `/v1` that API clients are given."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InputError(f"base_urls: {url!r}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError(f"base_urls: {url!r} is no address of a server, like http://HOST:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _described(error: httpx.RequestError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return f"no answer in time ({type(error).__name__})"
    return f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__


def _message(response: httpx.Response) -> str:
    """What an OpenAI-like server says went wrong, in one line."""
    try:
        body = response.json()
        error = body.get("error", body)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        text = response.text
    return " ".join(text.split())[:300] or response.reason_phrase


def _retry_after(response: httpx.Response) -> float:
    try:
        seconds = float(response.headers.get("retry-after", "1"))
    except ValueError:  # a date
        seconds = 1.0
    return min(max(seconds, 0.1), _LONGEST_REST)
