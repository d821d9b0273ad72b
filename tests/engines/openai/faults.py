"""Faults of a server at one request, while it answers all others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.engines.openai.server import DONE, Broken, Events, Tell, data_of, told, with_fields

HANGS = 1.0  # seconds until the connection is closed


def changed(number: int, **fields: Any) -> Tell:
    """Change fields of the choice in event `number`."""

    def lie(events: Events) -> Iterator[bytes]:
        events[number] = with_fields(events[number], **fields)
        return told(*events)

    return lie


def raw(*data: bytes) -> Tell:
    return lambda events: iter([data_of(events[0]), *data])


CHAT_EVENT = {"choices": [{"index": 0, "delta": {"content": " fine"}, "finish_reason": None}]}
# Invalid streams, each made from the events of a valid one.
LIES: dict[str, Tell] = {
    "half an answer": lambda events: map(data_of, events[:3]),
    "no reason": lambda events: told(*events[:-1]),
    "an empty reason": changed(-1, finish_reason=""),
    "nothing": lambda events: told(),
    "an unknown reason": changed(-1, finish_reason="error"),
    "an unknown reason before a normal end": changed(1, finish_reason="error"),
    "a function": changed(-1, finish_reason="function_call"),
    "another index": changed(1, index=1),
    "an index that is no number": changed(1, index="one"),
    "two choices": lambda events: told({"choices": 2 * events[0]["choices"]}, *events[1:]),
    "text after the end": lambda events: told(*events, events[0]),
    "two ends": lambda events: told(*events, with_fields(events[-1], finish_reason="stop")),
    "a number": changed(1, text=5),
    "a list": changed(1, text=[" fine"]),
    "a chat's event": lambda events: told(events[0], CHAT_EVENT, *events[2:]),
    "endless": changed(1, text=" fine" * 10_000),
    "no JSON": raw(b"data: <html>\n\n", DONE),
    "half a character": changed(1, text="\ud83d kind"),
    "the other half": changed(1, text=" \ude00"),
    "half a character at the end": changed(-1, text=" \ud83d"),
}
OUT_OF_MEMORY = {"error": {"message": "out of memory"}}
# Errors that are told with the status 200.
TOLD: dict[str, Any] = {
    "an error": raw(data_of(OUT_OF_MEMORY), DONE),
    "an error before a normal end": lambda events: told(*events[:-1], OUT_OF_MEMORY, events[-1]),
    "an error of older vLLM": raw(data_of({"object": "error", "message": "out of memory"}), DONE),
    "an error as a whole answer": (200, OUT_OF_MEMORY),
}


def _hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(HANGS)
    handler.close_connection = True


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def _break_off(handler: BaseHTTPRequestHandler) -> None:
    """Break off after the first event."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    handler.wfile.write(data_of({"choices": [{"index": 0, "text": " the"}]}))
    _reset(handler)


STATUSES: dict[str, tuple[int, Any]] = {
    "HTTP 307": (307, {}),
    "HTTP 400": (400, {"error": {"message": "filtered", "code": "content_filter"}}),  # Azure's
    "HTTP 401": (401, {"error": "Unauthorized"}),
    "HTTP 403": (403, b"<html>blocked</html>"),
    "HTTP 404": (404, {"error": {"message": "not found"}}),
    "HTTP 422": (422, {"error": "Input validation error", "error_type": "validation"}),  # TGI's
    "HTTP 451": (451, {}),
    "HTTP 500": (500, {"error": {"message": "index out of range"}}),
    "HTTP 504": (504, b"<html>gateway timeout</html>"),
}
FAULTS: dict[str, Any] = {
    **LIES,
    **TOLD,
    **STATUSES,
    "hangs": Broken(_hang),
    "resets": Broken(_reset),
    "breaks off": Broken(_break_off),
}
