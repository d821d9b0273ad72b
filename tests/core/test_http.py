"""Servers on real sockets that never finish, or echo the key.

`tests/engines/openai/test_connections.py` has wrong answers.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.generated import examples
from tests.hostile import KEY
from tests.scorers.services.stand_ins import quick
from tide.core import http
from tide.core.errors import EngineError, InputError, ScorerUnavailableError
from tide.core.http import Client, Reply, ServerFailed, parsed
from tide.engines.openai.engine import OpenAIEngine
from tide.scorers import load_scorer
from tide.scorers.remote import pause_of

Script = Callable[[socket.socket, bytes], None]


@contextmanager
def serving(script: Script) -> Iterator[tuple[str, list[bytes]]]:
    """The address of a server that runs `script` for every request, and the list of requests."""
    requests: list[bytes] = []

    class Scripted(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client closed the connection
                requests.append(self.request.recv(2**20))
                script(self.request, requests[-1])

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Scripted) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()


def sends(head: bytes, again: bytes = b"", pause: float = 0.0) -> Script:
    """Sends `head`, then `again` forever; without `again` waits for the client to close."""

    def script(connection: socket.socket, request: bytes) -> None:
        connection.sendall(head)
        while again:
            time.sleep(pause)
            connection.sendall(again)
        while connection.recv(65536):
            pass

    return script


OK = b"HTTP/1.1 200 OK\r\n"
ECHO = sends(b"HTTP/1.1 200 " + KEY.encode() + b"\r\n" + KEY.encode() + b"\r\n\r\n")


def ask(url: str, timeout: float = 30.0) -> Reply:
    async def once() -> Reply:
        async with Client(timeout) as client:
            return await client.ask("POST", url, {"text": "half \ud83d"})

    return asyncio.run(once())


@pytest.mark.parametrize(
    "script",
    [
        sends(OK + b"Content-Length: 1000000\r\n\r\n", b" ", 0.02),
        sends(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        sends(b""),
    ],
)
def test_an_answer_without_an_end_is_given_up(script: Script) -> None:
    began = time.monotonic()
    with serving(script) as (url, _), pytest.raises(ServerFailed, match=r"within 0\.3 seconds"):
        ask(url, timeout=0.3)
    assert time.monotonic() - began < 10


async def _read(client: Client, url: str) -> None:
    async with aclosing(client.events(url, {}, limit=10**12)) as events:
        async for _ in events:
            pass


def test_fast_stream_ends_with_its_reader() -> None:
    """However the reader ends: by cancellation, or by a deadline outside or inside of its task."""

    async def read_all(url: str) -> None:
        async with Client(30.0) as client:
            tasks = [asyncio.create_task(_read(client, url)) for _ in range(3)]
            await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=5)
            assert not left
            assert all(task.cancelled() for task in tasks)
            for outer, inner in ((0.2, 20.0), (20.0, 0.2)):
                began = time.monotonic()
                with anyio.move_on_after(outer), anyio.move_on_after(inner):
                    await asyncio.gather(_read(client, url), _read(client, url))
                assert time.monotonic() - began < 5
            task = asyncio.create_task(_read(client, url))
            with anyio.move_on_after(0.2):
                await task
            assert task.cancelled()

    events = sends(OK + b"Content-Type: text/event-stream\r\n\r\n", b"data: 1\n\n" * 1000)
    with serving(events) as (url, _):
        asyncio.run(read_all(url))


EVENT = OK + b"Content-Type: text/event-stream\r\n\r\ndata: 1\n\n"


def test_stream_that_stalls_ends_its_wait_but_no_other() -> None:
    """Its reader may take longer than the server may; and the timeout cancels no later work."""

    async def read(url: str, until: float) -> str:
        async with Client(0.3) as client:
            events = client.events(url, {}, until=until)
            assert b"1" in await anext(events)
            await asyncio.sleep(0.7)
            began = time.monotonic()
            with pytest.raises(ServerFailed) as failed:
                await anext(events)
            assert time.monotonic() - began < 5
            await asyncio.sleep(0.01)
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            return str(failed.value)

    with serving(sends(EVENT)) as (url, _):
        assert "no answer within 0.3 seconds" in asyncio.run(read(url, 1e12))
    with serving(sends(EVENT, b"data: 2\n\n", 0.1)) as (url, _):
        late = asyncio.run(read(url, time.monotonic() + 0.6))
        assert "the answer was not finished in time" in late


@pytest.mark.parametrize(
    ("name", "value"), [("SSL_CERT_FILE", "/nowhere.pem"), ("HTTP_PROXY", "odd://proxy")]
)
def test_environment_with_bad_proxy_or_certificates_is_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    http.certificates.cache_clear()
    with pytest.raises(InputError, match="or SSL_CERT_FILE of the environment"):
        Client(1.0)


def test_api_root_has_a_version() -> None:
    assert http.api_root("http://a:8000") == "http://a:8000/v1"
    for url in ("http://a:8000/v1", "https://a/v1beta/openai", "https://a/api/v3"):
        assert http.api_root(url) == url


@given(
    st.lists(st.sampled_from(["data: 1\n", "data:2\n", "\n", ": x\n", "data\n", "event: y\n"])),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
@examples(80, 2000)
def test_events_do_not_depend_on_chunks(lines: list[str], end: str, data: st.DataObject) -> None:
    stream = "".join(lines).replace("\n", end).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    values = [line[5:].strip().encode() for line in lines if line.startswith("data:")]
    parser = http.EventParser()
    events = [event for chunk in chunks for event in parser.add(chunk)]
    events += parser.end()
    assert events == values


def test_netrc_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("default login somebody password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with serving(sends(b"HTTP/1.1 204 Nothing\r\n\r\n")) as (url, requests):
        assert ask(url).status == 204
    assert b"authorization" not in requests[0].lower()


def test_the_key_is_in_no_traceback() -> None:
    with serving(ECHO) as (url, requests), quick(url, f"{KEY}\r\n"):
        moderation = load_scorer("openai-moderation")
        for failing in (
            lambda: OpenAIEngine("tiny", base_url=url),
            lambda: moderation.score(["a text"]),
        ):
            with pytest.raises((EngineError, ScorerUnavailableError)) as caught:
                failing()
            shown = "".join(traceback.format_exception(caught.value))
            assert "RemoteProtocolError" in shown
            assert KEY not in shown
    assert f"authorization: bearer {KEY}\r\n".encode() in requests[0].lower()
    assert KEY not in repr(moderation.__dict__)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("0", 0.0), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e400", 0.0),
     ("a" * 10**6, 0.0), ("9" * 5000, 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0), ("", 0.0)],
)  # fmt: skip
def test_a_pause_is_a_number_of_seconds(header: str, seconds: float) -> None:
    assert pause_of(Reply(429, httpx.Headers({"Retry-After": header}), b"")) == seconds


class _Body(BaseModel):
    number: int


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"number": true}', b'{"number": "1"}', b'{"number": 1.5}', b"[" * 10**6, b"5",
     b'{"number": 1}' * 2, b'{"number": 1, "x": "\\ud800"}', b'{"number": NaN}', b"\xff", b"{}"],
)  # fmt: skip
def test_a_body_is_plainly_what_is_expected_or_refused_on_one_line(body: bytes) -> None:
    with pytest.raises(ServerFailed) as refused:
        parsed(body, _Body)
    assert str(refused.value).startswith("the answer cannot be used: ")
    assert len(str(refused.value)) < 200


class _Named(BaseModel):
    numbers: dict[str, int]


def test_a_name_that_may_be_a_text_is_kept_out_of_the_problem_for_the_log() -> None:
    with pytest.raises(ServerFailed, match="what a model wrote") as refused:
        parsed(b'{"numbers": {"what a model wrote": ""}}', _Named, is_fixed=False)
    assert refused.value.problem == "the answer cannot be used"
