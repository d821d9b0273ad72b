"""Servers of every kind, and servers that fail; `tests/server/test_upstream.py` has all faults."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.writing import completed

from tests.engines.openai.faults import FAULTS
from tests.engines.openai.server import DIALECTS, Events, TextServer, told
from tide.core.chat import Chat
from tide.core.errors import CompletionError, CompletionLateError, EngineError
from tide.core.settings import Sampling
from tide.engines.base import Piece, Request
from tide.engines.openai import engine as engine_module
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)
PROMPT = "The weather today is"


@pytest.fixture(scope="module")
def server() -> Iterator[TextServer]:
    with TextServer() as server:
        yield server


@pytest.fixture(scope="module")
def engine(server: TextServer) -> Iterator[OpenAIEngine]:
    with OpenAIEngine("tiny", base_url=server.url) as engine:
        yield engine


def write(engine: OpenAIEngine, prompt: str, sampling: Sampling = GREEDY) -> Any:
    (ids,) = engine.tokenize([prompt])
    return completed(engine, [ids], sampling, [0])[0]


# Dialects


@pytest.mark.parametrize(
    "options",
    [
        *(pytest.param({"dialect": tell}, id=name) for name, tell in DIALECTS.items()),
        *(
            pytest.param({"media_type": media_type}, id=media_type)
            for media_type in ("Text/Event-Stream; charset=UTF-8", "application/octet-stream")
        ),
    ],
)
def test_what_a_server_writes_is_read_in_its_dialect(options: dict[str, Any]) -> None:
    dialect = options.get("dialect")
    if dialect is DIALECTS["TGI"]:
        options = options | {"refused": {"top_p": lambda value: value >= 1}, "tokens": False}
    with TextServer(**options) as server, OpenAIEngine("tiny", base_url=server.url) as engine:
        for top_p, ends in ((1.0, lambda _: False), (0.9, lambda text: text.count(" ") > 5)):
            sampling = GREEDY.model_copy(update={"top_p": top_p})
            server.ends = ends
            words, reason = server.written(PROMPT, {"max_tokens": 6, "temperature": 0.0})
            completion = write(engine, PROMPT, sampling)
            assert completion.text == "".join(words)
            always_stops = dialect is DIALECTS["LocalAI"]
            assert completion.finish_reason == ("stop" if always_stops else reason)
        server.ends = lambda _: False
        chat = engine.encode(engine.text_of(Chat.said("Who are you?")))
        (answer,) = completed(engine, [chat.token_ids], GREEDY, [0])
        assert len(answer.text.split()) > 2


@pytest.mark.parametrize("is_chat", [False, True])
def test_halves_of_a_character_in_two_events(is_chat: bool) -> None:
    def tell(events: Events) -> Iterator[bytes]:
        texts = [" Good", " \ud83d", "\ude00", " day\ud83d", "\ude00\ud83d", "\ude00", ""]
        for text, event in zip(texts, events, strict=True):
            (choice,) = event["choices"]
            if is_chat:
                choice["delta"] = {"content": text, "reasoning_content": text}
            else:
                choice["text"] = text
        return told(*events)

    with TextServer() as server, OpenAIEngine("tiny", base_url=server.url) as engine:
        prompt = engine.text_of(Chat.said("Who are you?") if is_chat else PROMPT)
        (ids,) = engine.tokenize([prompt])
        server.dialect = tell
        expected = " Good \U0001f600 day\U0001f600\U0001f600"

        async def read() -> list[Piece]:
            return [piece async for piece in engine.write(Request(ids, GREEDY))]

        pieces = asyncio.run(read())
        assert engine.texts([[i for piece in pieces for i in piece.token_ids]]) == [expected]
        assert pieces[-1].parts.reasoning == (expected if is_chat else "")


# Faults at one request of many


def ask_all(engine: OpenAIEngine, prompts: list[str]) -> list[Any]:
    rows = engine.tokenize(prompts)

    async def ask() -> list[Any]:
        requests = [engine.complete([Request(ids, GREEDY)]) for ids in rows]
        return await asyncio.gather(*requests, return_exceptions=True)

    return asyncio.run(ask())


def test_a_request_that_is_not_answered_in_time() -> None:
    with (
        TextServer(faults={"broken": FAULTS["hangs"]}) as server,
        OpenAIEngine("tiny", base_url=server.url, timeout=0.6) as engine,
    ):
        failed, other = ask_all(engine, ["A broken text", PROMPT])
        assert isinstance(failed, CompletionLateError)
        assert str(failed) == f"{server.url}: no answer within 0.6 seconds"
        assert isinstance(other, list)


def test_request_whose_connection_breaks_is_sent_twice(
    server: TextServer, engine: OpenAIEngine
) -> None:
    """The server may have closed an idle connection."""
    server.faults = {"broken": FAULTS["resets"]}
    failed, other = ask_all(engine, ["A broken text", PROMPT])
    assert isinstance(failed, CompletionError)
    assert isinstance(other, list)
    assert sum("broken" in str(body.get("prompt")) for body in server.requests) == 2


# A server that is gone


def test_requests_wait_for_a_server_that_restarts() -> None:
    with TextServer() as server, OpenAIEngine("tiny", base_url=server.url) as engine:
        expected = write(engine, PROMPT)
        server.stop()
        timer = threading.Timer(0.5, server.start)
        timer.start()
        assert write(engine, PROMPT) == expected
        timer.join()


@pytest.mark.parametrize("problem", ["ConnectError", "HTTP 502", "HTTP 503"])
def test_server_that_is_gone_is_an_error_for_all_requests(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PATIENCE", 0.3)
    with TextServer() as server, OpenAIEngine("tiny", base_url=server.url) as engine:
        if problem == "ConnectError":
            server.stop()
        else:  # of a balancer in front of the server
            server.answer = lambda *_: (int(problem.removeprefix("HTTP ")), b"<html>")
        for _ in range(2):
            with pytest.raises(EngineError, match=f"^{server.url}: {problem}"):
                write(engine, PROMPT)
        assert not engine.available
        time.sleep(0.2)
        assert not engine.available
        server.answer = lambda *_: None
        server.start()
        until = time.monotonic() + 120
        while not engine.available:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert write(engine, PROMPT).text
