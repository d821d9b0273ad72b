"""Connections by aiohttp fail as those of httpx do, and give way to them where a proxy is set."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import BaseModel

from tests.core.test_http import EVENT, OK, Script, sends, serving
from tide.core import http
from tide.core.http import Client, ServerFailed, ServerUnreachable
from tide.engines.openai.connections import Connections
from tide.engines.openai.upstream import Upstream


class Answer(BaseModel):
    """Takes any object."""


async def by_aiohttp(url: str) -> None:
    upstream = Upstream(url, 5.0, patience=0.1)
    try:
        await upstream.request("/v1/models", Answer)
    finally:
        await upstream.close()


async def by_httpx(url: str) -> None:
    async with Client(5.0) as client:
        await client.ask("GET", url)


Ask = Callable[[str], Coroutine[Any, Any, None]]


def cut_off(head: bytes) -> Script:
    return lambda connection, request: connection.sendall(head)


@pytest.mark.parametrize("ask", [by_aiohttp, by_httpx])
@pytest.mark.parametrize(
    ("script", "problem", "broken"),
    [
        (cut_off(b""), "RemoteProtocolError", True),
        (cut_off(b"no answer of HTTP\r\n\r\n"), "RemoteProtocolError", True),
        (cut_off(OK + b"Content-Length: 9\r\n\r\nshort"), "RemoteProtocolError", True),
        (cut_off(OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nab"), "RemoteProtocolError", True),
        (sends(OK, b"X: " + b"a" * 65000 + b"\r\n"), "RemoteProtocolError", True),
        (sends(OK + b"\r\n", b" " * 65536), "more than 1,048,576 bytes", False),
        (sends(OK + b"Content-Encoding: gzip\r\n\r\n"), "compressed answer", False),
    ],
)
def test_a_wrong_answer_is_a_failure(script: Script, problem: str, broken: bool, ask: Ask) -> None:
    with serving(script) as (url, _), pytest.raises(ServerFailed, match=problem) as failed:
        asyncio.run(ask(url))
    assert failed.value.broken is broken
    assert not isinstance(failed.value, ServerUnreachable)


def test_event_that_arrived_while_nobody_read_is_not_lost() -> None:
    async def read(url: str) -> Any:
        async with Client(0.3, transport=Connections()) as client:
            events = client.events(url, {})
            await anext(events)
            await asyncio.sleep(0.7)
            return await anext(events)

    with serving(sends(EVENT, b"data: 2\n\n", 0.5)) as (url, _):
        assert asyncio.run(read(url)) == [b"2"]


def test_a_redirection_is_not_followed() -> None:
    away = sends(b"HTTP/1.1 307 Go\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")
    with serving(away) as (url, _), pytest.raises(ServerFailed, match="HTTP 307"):
        asyncio.run(by_aiohttp(url))


def test_connection_that_is_not_accepted_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeout of the whole request is longer, and a request that is passed on has none."""
    monkeypatch.setattr(http, "_CONNECT", 0.2)
    with socket.socket() as listening, ExitStack() as queue:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):  # the queue of connections is full
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        with pytest.raises(ServerUnreachable, match="ConnectTimeout"):
            asyncio.run(by_aiohttp(f"http://127.0.0.1:{listening.getsockname()[1]}"))


@pytest.mark.parametrize(
    ("variable", "is_proxied"), [("http_proxy", True), ("all_proxy", True), ("no_proxy", False)]
)
def test_a_proxy_of_the_environment_is_used(
    variable: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = sends(OK + b"Content-Length: 2\r\n\r\n{}")
    with serving(answer) as (url, direct), serving(answer) as (proxy, proxied):
        monkeypatch.setenv(variable, proxy)
        asyncio.run(by_aiohttp(url))
    assert (len(direct), len(proxied)) == ((0, 1) if is_proxied else (1, 0))
