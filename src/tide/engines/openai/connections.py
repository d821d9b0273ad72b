"""Connections of httpx by aiohttp, which reads an event of a stream in a third of the time.

The time of a request does not grow with the number of connections, as it does with those of httpx.
The package httpx-aiohttp is not used: it reports a connection that the server closed after a
request as one that was never made, so the request would be sent again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp
import httpx
from yarl import URL

from tide.core.http import KEEP_ALIVE, certificates

# Headers that aiohttp would add to a request.
_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_LONGEST_HEADER = 64 * 1024


class Connections(httpx.AsyncBaseTransport):
    """Sends the requests of a client. It ignores the proxies of the environment."""

    def __init__(self) -> None:
        self._sessions = _session()
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._session is None:  # a session belongs to the loop of its requests
            self._session = await anext(self._sessions)
        has_body = request.headers.get("content-length", "0") != "0"
        timeout = request.extensions["timeout"]
        with _errors_of_httpx():
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=request.stream if has_body else None,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout["connect"]),
                allow_redirects=False,
            )
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Body(response, timeout["read"]),
            request=request,
        )

    async def aclose(self) -> None:
        await self._sessions.aclose()


async def _session() -> AsyncGenerator[aiohttp.ClientSession, None]:
    """Yield a session, which is closed with the generator: at the latest when its loop ends."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=certificates())
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=_ADDED,
        max_field_size=_LONGEST_HEADER,
    ) as session:
        yield session


class _Body(httpx.AsyncByteStream):
    """The body of a response. seconds: how long the next bytes are waited for.

    aiohttp's `sock_read` also runs while nobody waits, and drops what has arrived. It does not end
    the wait for a body whose chunks are malformed.
    """

    def __init__(self, response: aiohttp.ClientResponse, seconds: float | None) -> None:
        self._response, self._seconds = response, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content, loop = self._response.content, asyncio.get_running_loop()
        late = httpx.ReadTimeout(f"no bytes for {self._seconds} seconds")
        with _errors_of_httpx():
            while True:
                # A timer and no cancelled scope, which takes longer for each read.
                timer = loop.call_later(self._seconds or math.inf, content.set_exception, late)
                try:
                    chunk = await content.readany()
                finally:
                    timer.cancel()
                if not chunk:
                    return
                yield chunk

    async def aclose(self) -> None:
        self._response.close()  # the connection of a whole answer is kept for the next request


@contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Raise failures of aiohttp as those of httpx, which say whether anything was sent."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error)) from error
    except aiohttp.ServerTimeoutError as error:
        raise httpx.ReadTimeout(str(error)) from error
    except aiohttp.ClientOSError as error:
        raise httpx.ReadError(str(error)) from error
    except aiohttp.ClientError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
