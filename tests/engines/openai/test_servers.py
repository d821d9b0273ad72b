"""Servers of every kind, and servers that fail; `tests/server/test_upstream.py` has all faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.writing import completed, pieces_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.openai.server import DIALECTS, Events, TextServer, told
from tests.generated import examples
from tests.hostile import mutations
from tests.server.running import wait_until
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.openai import engine as engine_module
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)
PROMPT = "The weather today is"


def write(engine: OpenAIEngine, prompt: str | Chat, sampling: Sampling = GREEDY) -> Any:
    (ids,) = engine.tokenize([engine.text_of(prompt)])
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
        assert len(write(engine, Chat.said("Who are you?")).text.split()) > 2


@pytest.mark.parametrize("is_chat", [False, True])
def test_halves_of_a_character_in_two_events(
    is_chat: bool, upstream: TextServer, text_engine: OpenAIEngine
) -> None:
    def tell(events: Events) -> Iterator[bytes]:
        texts = [" Good", " \ud83d", "\ude00", " day\ud83d", "\ude00\ud83d", "\ude00", ""]
        for text, event in zip(texts, events, strict=True):
            (choice,) = event["choices"]
            if is_chat:
                choice["delta"] = {"content": text, "reasoning_content": text}
            else:
                choice["text"] = text
        return told(*events)

    (ids,) = text_engine.tokenize([text_engine.text_of(Chat.said("kind") if is_chat else "kind")])
    upstream.dialect = tell
    pieces = asyncio.run(pieces_of(text_engine, Request(ids, GREEDY)))
    expected = " Good \U0001f600 day\U0001f600\U0001f600"
    assert text_engine.texts([[i for piece in pieces for i in piece.token_ids]]) == [expected]
    assert pieces[-1].parts.reasoning == (expected if is_chat else "")


# Streams that are changed at random


@pytest.mark.attack
@given(change=mutations(), is_chat=st.booleans())
@settings(examples(50, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_streams_are_a_text_or_an_error(
    change: Callable[[Any], Any], is_chat: bool, upstream: TextServer, text_engine: OpenAIEngine
) -> None:
    upstream.dialect = lambda events: told(*change(events))
    refusal, texts = "", []
    try:
        completion = write(text_engine, Chat.said("kind") if is_chat else "kind")
        texts = [completion.text]
    except CompletionError as error:
        refusal = str(error)
    for text in texts:
        text.encode()  # no half of a character
        assert len(completion.token_ids) <= 6
    assert texts or refusal.startswith(upstream.url)


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
        server.answer = lambda *_: None
        server.start()
        wait_until(lambda: engine.available)
        assert write(engine, PROMPT).text
