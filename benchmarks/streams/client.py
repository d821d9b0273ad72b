"""A client that keeps all that it receives, and when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Answer:
    """A received stream. number: of its case's request. events: each with the time of its arrival.

    error: why it is no whole answer: an error's status, an error event, or a broken connection.
    """

    number: int
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    content: bytes = b""
    events: list[tuple[float, Any]] = field(default_factory=list)
    dones: int = 0
    error: str = ""

    def choices(self, index: int = 0) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield the chunks of a choice, with their times."""
        for at, event in self.events:
            for choice in event.get("choices") or []:
                if choice.get("index", 0) == index:
                    yield at, choice

    def deltas(self, index: int = 0) -> list[dict[str, Any]]:
        return [choice.get("delta") or {} for _, choice in self.choices(index)]

    def text(self, index: int = 0) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas(index))

    def growing(self) -> Iterator[tuple[float, str]]:
        """Yield the text so far, each time that it grows."""
        text = ""
        for at, choice in self.choices():
            if piece := (choice.get("delta") or {}).get("content"):
                text += piece
                yield at, text

    def reason(self, index: int = 0) -> str | None:
        reasons = [choice.get("finish_reason") for _, choice in self.choices(index)]
        return next((reason for reason in reasons if reason), None)

    def calls(self) -> dict[int, dict[str, str]]:
        """Return the tool calls by their index."""
        calls: dict[int, dict[str, str]] = {}
        for delta in self.deltas():
            for part in delta.get("tool_calls") or []:
                call = calls.setdefault(part.get("index", 0), {"name": "", "arguments": ""})
                for name in call:
                    call[name] += (part.get("function") or {}).get(name) or ""
        return calls

    def shown(self) -> str:
        """Return all strings of all events, those of equal fields joined."""
        joined: dict[tuple[Any, ...], str] = {}
        for _, event in self.events:
            for path, string in _strings(event, ()):
                joined[path] = joined.get(path, "") + string
        return "\n".join(joined.values())

    def is_told(self) -> bool:
        """Return whether the end of the answer says that not all of it was sent."""
        return bool(self.error) or self.reason() == "content_filter"


def _strings(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        # Choices and calls are told apart by their index, not by their place in an event.
        path = (*path, value.get("index"))
        for name, part in value.items():
            yield from _strings(part, (*path, name))
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part, path)


async def read(answer: Answer, response: httpx.Response, enough: int = 0) -> None:
    """Read a stream into `answer`, to its end or until `enough` pieces of text have arrived."""
    answer.status, answer.headers = response.status_code, response.headers
    if response.status_code != 200:
        answer.content = await response.aread()
        answer.error = f"status {response.status_code}"
        return
    unread = b""
    try:
        async for data in response.aiter_raw():
            at = time.monotonic()
            answer.content += data
            unread = (unread + data).replace(b"\r\n", b"\n")
            *whole, unread = unread.split(b"\n\n")
            for block in whole:
                _read_event(answer, at, block)
            if enough and len(list(answer.growing())) >= enough:
                return
    except httpx.HTTPError as error:
        answer.error = answer.error or f"connection broken ({type(error).__name__})"
    _read_event(answer, time.monotonic(), unread)


def _read_event(answer: Answer, at: float, block: bytes) -> None:
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line[:5] == b"data:"]
    data = b"\n".join(lines)
    if not data:
        return
    if data == b"[DONE]":
        answer.dones += 1
        return
    try:
        event = json.loads(data)
    except ValueError:
        answer.error = answer.error or f"an event that is not JSON: {data[:60]!r}"
        return
    if answer.dones:
        answer.error = answer.error or "an event after [DONE]"
    if event.get("error"):
        answer.error = answer.error or "an error event"
    answer.events.append((at, event))
