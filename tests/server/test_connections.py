"""Headers have a time limit, whether a client sends none, half of them, or byte by byte."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.server.running import Running, running, wait_until
from tide.server import gate

HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(gate, "HEAD_SECONDS", 0.5)
    with running() as found:
        yield found


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def answer(connection: socket.socket) -> bytes:
    """A whole response of /health."""
    read = b""
    while not read.endswith(b"}"):
        read += connection.recv(4096)
    return read


def test_half_sent_heads_do_not_stay_open(server: Running) -> None:
    state = server.server.server_state
    with ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(100)]
        for client in clients[::2]:
            client.sendall(HEAD)
        wait_until(lambda: len(state.connections) >= 100)
        wait_until(lambda: not state.connections)
        assert all(map(is_closed, clients))
    assert server.ask().status_code == 200


def test_a_byte_now_and_then_is_not_enough(server: Running) -> None:
    with server.connect() as client:
        began = time.monotonic()
        with suppress(OSError):  # raised when the server closes the connection
            for byte in HEAD * 10:
                client.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - began < 5


def test_the_second_request_of_a_connection_as_well(server: Running) -> None:
    with server.connect() as client:
        client.sendall(HEAD + b"\r\n")
        assert answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(HEAD)
        assert is_closed(client)


def test_what_comes_in_time_is_answered(server: Running) -> None:
    """Headers in two parts, three times: each request has a time limit of its own."""
    with server.connect() as client:
        for _ in range(3):
            client.sendall(HEAD)
            time.sleep(0.3)
            client.sendall(b"\r\n")
            assert answer(client).startswith(b"HTTP/1.1 200")
