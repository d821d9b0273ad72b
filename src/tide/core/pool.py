"""A pool of interchangeable servers. The least loaded server gets the next request.

A failed server leaves the pool, and other servers do its work. The pool checks the failed server in
the background until the server works again. The pool does not read the content of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx
from pydantic import BaseModel, SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.http import MIB, Client, Reply, ServerFailed, base_url
from tide.core.sanitize import logger

_log = logger(__name__)
_T = TypeVar("_T")
_Parsed = TypeVar("_Parsed", bound=BaseModel)

# Seconds
_LEAST_REST, _USUAL_REST, _LONGEST_REST = 0.1, 1.0, 30.0  # pauses of an overloaded server
_FIRST_PROBE, _LONGEST_PAUSE = 0.5, 10.0

# A request fails after this many failed attempts by servers that pass their checks.
_ATTEMPTS = 5

# HTTP
_OVERLOADED = 429
_FORBIDDEN = (401, 403)
# Maximum concurrent requests of a client. The time that httpx needs for a request grows with the
# client's connections: 0.5 ms with 4 connections, 5 ms with 256.
_CLIENT_REQUESTS = 4


class EndpointRefused(Exception):
    """A server refuses a request permanently.

    status: the HTTP status; 0 without an HTTP answer.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Endpoint:
    """One server.

    timeout: maximum seconds for one request. key: sent as a bearer token. load: running units of
    work. refuses: whether the server left the pool because it refuses all requests permanently.
    did_well: time of the server's last success. check: the running check after a failure, if any.
    """

    url: str
    timeout: float
    key: SecretStr | None
    load: int = 0
    available: bool = False
    rests_until: float = 0.0
    reason: str = "not tried yet"
    refuses: bool = False
    did_well: float = 0.0
    check: asyncio.Task[bool] | None = None
    clients: list[Client] = field(default_factory=list)

    async def request(
        self, path: str, kind: type[_Parsed], body: Any = None, *, limit: int = MIB
    ) -> _Parsed:
        """GET, or POST `body`; return the answer of at most `limit` bytes, parsed as `kind`.

        Raises ServerFailed if the connection or the server failed or the answer does not parse, and
        EndpointRefused if the server refuses the request.
        """
        method, client = "GET" if body is None else "POST", self._client()
        ask = partial(client.ask, method, self.url + path, body, limit=limit)
        try:
            reply = await ask()
        except ServerFailed as error:
            if not error.broken:
                raise
            reply = await ask()  # again: the server may have closed an idle connection
        _raise_for_status(reply, path)
        return reply.parse(kind)

    async def stream(
        self, path: str, kind: type[_Parsed], body: Any, *, limit: int = MIB
    ) -> AsyncGenerator[_Parsed, None]:
        """Like `request`, for a stream: yields each server-sent event, parsed, up to `[DONE]`."""
        events = self._client().events(self.url + path, body, limit=limit)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Reply):
                    _raise_for_status(event, path)
                    raise ServerFailed("did not stream its answer")
                if event == b"[DONE]":
                    return
                yield _parsed(event, kind)
        raise ServerFailed("ended a stream in its middle")

    def _client(self) -> Client:
        client = next((c for c in self.clients if c.under_way < _CLIENT_REQUESTS), None)
        if client is None:
            self.clients.append(client := Client(self.timeout, key=self.key))
        return client


def _raise_for_status(reply: Reply, path: str) -> None:
    """Raise ServerFailed or EndpointRefused for an unsuccessful status."""
    status = reply.status
    if status == _OVERLOADED:
        seconds = min(max(reply.pause(_USUAL_REST), _LEAST_REST), _LONGEST_REST)
        raise ServerFailed(f"HTTP {status}", seconds)
    if reply.passing:
        raise ServerFailed(f"HTTP {status}: {reply.message()}")
    if status in _FORBIDDEN:
        raise EndpointRefused(f"rejects the API key, or requires one (HTTP {status})", status)
    if not 200 <= status < 300:
        raise EndpointRefused(f"HTTP {status} to {path}: {reply.message()}", status)


def _parsed(event: bytes, kind: type[_Parsed]) -> _Parsed:
    """Parse one event of a stream as `kind`. Raises ServerFailed for errors and invalid events."""
    reply = Reply(200, httpx.Headers(), event)
    try:
        return reply.parse(kind)
    except ServerFailed:
        if b'"error"' not in event:
            raise
        raise ServerFailed(f"an error in a stream: {reply.message()}") from None


@dataclass
class _Job:
    """One piece of work. causes: errors of failed servers, by address. checks: their checks."""

    began: float
    causes: dict[str, str] = field(default_factory=dict)
    checks: list[asyncio.Task[bool]] = field(default_factory=list)


class EndpointPool:
    """Servers at `urls`. A pool must be used and closed in the same event loop.

    admit: validates a server before it enters or reenters the pool; raises ServerFailed or
    EndpointRefused if the server cannot be used now. check: sends a request that a working server
    answers; raises the same errors. timeout: maximum seconds for one request. deadline: maximum
    seconds for all attempts of one `run`. api_key: sent as a bearer token to all servers.

    A server that fails is checked. If it fails the check, it leaves the pool; otherwise the request
    is to blame, and only that request fails.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        admit: Callable[[Endpoint], Awaitable[None]],
        check: Callable[[Endpoint], Awaitable[None]],
        timeout: float,
        deadline: float,
        *,
        api_key: SecretStr | None = None,
    ) -> None:
        bases = [base_url(url, "base_urls") for url in ([urls] if isinstance(urls, str) else urls)]
        # Addresses for API clients end in `/v1`.
        bases = [base.removesuffix("/v1").rstrip("/") for base in bases]
        if not bases:
            raise InputError("base_urls: give at least one server (--base-url http://HOST:PORT)")
        if len(set(bases)) < len(bases):
            raise InputError("base_urls: the same server twice")
        self.endpoints = [Endpoint(base, min(timeout, deadline), api_key) for base in bases]
        self._admit, self._check = admit, check
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deadline = deadline

    async def start(self) -> None:
        """Admit all servers; retry failed servers later. Raises EngineError if all servers fail."""
        await asyncio.gather(*(self._enter(endpoint) for endpoint in self.endpoints))
        if not self.available:
            raise EngineError(f"no server can be used: {self.reasons()}")
        for endpoint in self.endpoints:
            if not endpoint.available:
                self._leave(endpoint)

    async def run(self, units: int, work: Callable[[Endpoint], Awaitable[_T]]) -> _T:
        """Run `work(server)` on the least loaded server; if it fails, on another one.

        units: size of the work, for load balancing. Raises CompletionError if servers fail at this
        work but not at other work, and EngineError if no server works.
        """
        job = _Job(asyncio.get_running_loop().time())
        retrying = AsyncRetrying(retry=retry_if_exception_type(ServerFailed), wait=self._pause)
        with anyio.move_on_after(self._deadline):
            return await retrying(self._attempt, job, units, work)
        reasons = "; ".join(f"{e.url}: {job.causes.get(e.url, e.reason)}" for e in self.endpoints)
        late = f"within {self._deadline:g} s (deadline): {reasons}"
        if any(e.available and e.did_well > job.began for e in self.endpoints):
            raise CompletionError(f"the servers work, but did not finish this request {late}")
        raise EngineError(f"the servers did not finish {late}")

    @property
    def available(self) -> bool:
        """Whether a server can be used."""
        return any(endpoint.available for endpoint in self.endpoints)

    def reasons(self) -> str:
        """For each server, "in use" or the reason why it is not."""
        return "; ".join(f"{endpoint.url}: {endpoint.reason}" for endpoint in self.endpoints)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in (client for endpoint in self.endpoints for client in endpoint.clients):
            await client.aclose()

    async def _attempt(
        self, job: _Job, units: int, work: Callable[[Endpoint], Awaitable[_T]]
    ) -> _T:
        usable = self._usable()
        if not usable:
            if all(endpoint.refuses for endpoint in self.endpoints):
                raise EngineError(f"no server can be used: {self.reasons()}")
            raise ServerFailed("no server available")
        # Prefer a server that has not failed at this job and is not being checked.
        endpoint = min(usable, key=lambda e: (e.url in job.causes, e.check is not None, e.load))
        began = asyncio.get_running_loop().time()
        endpoint.load += units
        try:
            result = await work(endpoint)
        except asyncio.CancelledError:  # usually by the deadline
            waited = asyncio.get_running_loop().time() - began
            before = f", and before: {cause}" if (cause := job.causes.get(endpoint.url)) else ""
            job.causes[endpoint.url] = f"no answer within {waited:.3g} seconds{before}"
            raise
        except (ServerFailed, EndpointRefused) as error:
            job.causes[endpoint.url] = str(error)
            await self._blame(endpoint, job, error)
            raise ServerFailed(str(error)) from None
        finally:
            endpoint.load -= units
        endpoint.did_well = asyncio.get_running_loop().time()
        if endpoint.available:  # the reason may still describe a pause
            endpoint.reason = "in use"
        return result

    async def _blame(
        self, endpoint: Endpoint, job: _Job, error: ServerFailed | EndpointRefused
    ) -> None:
        """Raise CompletionError if the request, not the server, is to blame for a failure."""
        refused = isinstance(error, EndpointRefused)
        if self._rests(endpoint, error) or not endpoint.available:
            return
        if endpoint.check is None:
            endpoint.check = self.begin(self._works(endpoint))
        job.checks.append(check := endpoint.check)
        if not refused and len(job.checks) < _ATTEMPTS and self._fresh(job):
            return  # another server tries the request meanwhile
        # Checks are shielded from the cancellation of this job: other jobs wait for them, too.
        job.checks = [one for one in job.checks if await asyncio.shield(one)]
        if len(job.checks) >= _ATTEMPTS or (refused and check in job.checks):
            raise CompletionError(f"{endpoint.url}: {error}") from None

    def _usable(self) -> list[Endpoint]:
        now = asyncio.get_running_loop().time()
        return [e for e in self.endpoints if e.available and e.rests_until <= now]

    def _fresh(self, job: _Job) -> bool:
        """Whether there is a usable server that has not failed at the job."""
        return any(e.url not in job.causes for e in self._usable())

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next attempt: 0 while another server can take the job at once."""
        if self._fresh(state.args[0]):
            return 0.0
        return wait_random_exponential(multiplier=0.1, max=2.0)(state)

    def _rests(self, endpoint: Endpoint, error: ServerFailed | EndpointRefused) -> bool:
        """If the failed server asked for a pause, let it rest, and return True."""
        if isinstance(error, EndpointRefused) or not error.pause:
            return False
        endpoint.reason = str(error)
        endpoint.rests_until = asyncio.get_running_loop().time() + error.pause
        return True

    async def _works(self, endpoint: Endpoint) -> bool:
        """Check a server; return whether it works. A server that does not work leaves the pool."""
        try:
            await self._check(endpoint)
        except (ServerFailed, EndpointRefused) as error:
            if not self._rests(endpoint, error) and endpoint.available:
                self._out(endpoint, error)
                self._leave(endpoint)
            return False
        finally:
            endpoint.check = None
        endpoint.did_well = asyncio.get_running_loop().time()
        return True

    def _out(self, endpoint: Endpoint, error: ServerFailed | EndpointRefused) -> None:
        endpoint.reason, endpoint.available = str(error), False
        endpoint.refuses = isinstance(error, EndpointRefused)

    def _leave(self, endpoint: Endpoint) -> None:
        _log.warning("%s is out of the pool: %s", endpoint.url, endpoint.reason)
        self.begin(self._probe(endpoint))

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start a task that `close` cancels."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _probe(self, endpoint: Endpoint) -> None:
        pause = _FIRST_PROBE
        while not endpoint.available:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            await self._enter(endpoint)
        _log.warning("%s is back in the pool", endpoint.url)

    async def _enter(self, endpoint: Endpoint) -> None:
        """Try to admit a server; store the error in `reason` if the server cannot be used."""
        try:
            await self._admit(endpoint)
        except (ServerFailed, EndpointRefused) as error:
            self._out(endpoint, error)
        else:
            endpoint.available, endpoint.refuses, endpoint.rests_until = True, False, 0.0
            endpoint.reason = "in use"
