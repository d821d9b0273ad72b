"""Servers of every kind, and servers that fail at one request: only this request fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.writing import completed

from tests.engines.openai.faults import FAULTS, STATUSES
from tests.engines.openai.server import DIALECTS, TextServer
from tide import Detoxifier
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError
from tide.core.results import Result
from tide.core.settings import Sampling
from tide.engines.base import Request
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)
PROMPTS = [f"The weather {number} is" for number in range(100)]
PLACE = 40


@pytest.fixture(scope="module")
def server() -> Iterator[TextServer]:
    with TextServer() as server:
        yield server


@pytest.fixture(scope="module")
def engine(server: TextServer) -> Iterator[OpenAIEngine]:
    with OpenAIEngine("tiny", base_urls=server.url) as engine:
        yield engine


def write(engine: OpenAIEngine, prompt: str, sampling: Sampling = GREEDY) -> Any:
    (ids,) = engine.tokenize([prompt])
    return completed(engine, [ids], sampling, [0])[0]


# Dialects

TGI: dict[str, Any] = {"refused": {"top_p": lambda value: value >= 1}, "tokens": False}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_server_writes_is_read_in_its_dialect(dialect: str) -> None:
    own = TGI if dialect == "TGI" else {}
    with (
        TextServer(dialect=DIALECTS[dialect], **own) as server,
        OpenAIEngine("tiny", base_urls=server.url) as engine,
    ):
        for top_p in (1.0, 0.9):
            sampling = GREEDY.model_copy(update={"top_p": top_p})
            for ends in (lambda _: False, lambda text: text.count(" ") > 5):
                server.ends = ends
                words, reason = server.written(PROMPTS[0], {"max_tokens": 6, "temperature": 0.0})
                found = write(engine, PROMPTS[0], sampling)
                assert found.text == "".join(words)
                assert found.finish_reason == ("stop" if dialect == "LocalAI" else reason)
        server.ends = lambda _: False
        chat = engine.encode(engine.text_of(Chat.said("Who are you?")))
        (answer,) = completed(engine, [chat.token_ids], GREEDY, [0])
        assert len(answer.text.split()) > 2


def test_a_server_that_does_not_tell_its_end_is_refused_at_the_start() -> None:
    """llama.cpp's forks send no [DONE]: nobody could tell whether a text is complete."""
    with (
        TextServer(lie=FAULTS["no end"]) as server,
        pytest.raises(EngineError, match=r"no server can be used: .*ended a stream in its middle"),
    ):
        OpenAIEngine("tiny", base_urls=server.url)


# Faults at one request of many


def results_of(engine: OpenAIEngine, prompts: list[str]) -> list[Any]:
    detox = Detoxifier(
        engine,
        scorer=lambda texts: [0.9 if "dull" in text.lower() else 0.1 for text in texts],
        strategy="resample",
        preset="relative",
        max_new_tokens=4,
    )
    return detox.batch(prompts, return_exceptions=True)


@pytest.fixture(scope="module")
def alone(server: TextServer, engine: OpenAIEngine) -> list[Result]:
    found = results_of(engine, PROMPTS)
    assert sum(len(one.best.trace) > 1 for one in found) > 5
    return found


@pytest.mark.parametrize("fault", ["a null text", "HTTP 500"])
def test_one_prompt_of_a_hundred_fails_alone(
    fault: str, server: TextServer, engine: OpenAIEngine, alone: list[Result]
) -> None:
    server.faults = {"broken": FAULTS[fault]}
    server.requests.clear()
    spoiled = [*PROMPTS[:PLACE], "The broken weather is", *PROMPTS[PLACE + 1 :]]
    found = results_of(engine, spoiled)
    failed = found.pop(PLACE)
    assert isinstance(failed, CompletionError)
    assert str(failed).startswith(f"prompt {PLACE}: {server.url}: ")
    assert found == [*alone[:PLACE], *alone[PLACE + 1 :]]
    assert engine.available
    assert sum("broken" in str(body.get("prompt")) for body in server.requests) <= 5


def ask_all(engine: OpenAIEngine, prompts: list[str]) -> list[Any]:
    rows = engine.tokenize(prompts)

    async def ask() -> list[Any]:
        requests = [engine.complete([Request(ids, GREEDY)]) for ids in rows]
        return await asyncio.gather(*requests, return_exceptions=True)

    return asyncio.run(ask())


def test_every_fault_at_once_is_told_of_its_request(
    server: TextServer, engine: OpenAIEngine
) -> None:
    server.faults = {f"<{name}>": fault for name, fault in FAULTS.items()}
    began = time.monotonic()
    failed = ask_all(engine, [f"A <{name}> text" for name in FAULTS])
    assert time.monotonic() - began < 15
    for name, error in zip(FAULTS, failed, strict=True):
        assert isinstance(error, CompletionError), name
        assert str(error).startswith(f"{server.url}: ")
        assert "in use" not in str(error)
        assert name in str(error) or not name.startswith("HTTP") or name == "HTTP 401"
        assert sum(f"<{name}>" in str(body.get("prompt")) for body in server.requests) <= 5
    assert engine.available
    assert write(engine, PROMPTS[0]).text


def test_a_request_that_is_not_answered_in_time() -> None:
    with (
        TextServer(faults={"broken": FAULTS["hangs"]}) as server,
        OpenAIEngine("tiny", base_urls=server.url, timeout=0.6) as engine,
    ):
        failed, other = ask_all(engine, ["A broken text", PROMPTS[0]])
        assert isinstance(failed, CompletionError)
        assert str(failed) == f"{server.url}: no answer within 0.6 seconds"
        assert isinstance(other, list)


def test_a_request_that_is_too_much_for_a_server_that_does_others() -> None:
    """The request is retried; at its deadline it fails alone, with the server's status."""
    with (
        TextServer(faults={"broken": (429, {})}) as server,
        OpenAIEngine("tiny", base_urls=server.url, deadline=1.5) as engine,
    ):
        failed, *others = ask_all(engine, ["A broken text", *PROMPTS[:4]])
        assert isinstance(failed, CompletionError)
        assert "(deadline): " in str(failed)
        assert "HTTP 429" in str(failed)
        assert all(isinstance(one, list) for one in others)
        assert engine.available


# Faults at all requests


@pytest.mark.parametrize("status", ["HTTP 307", "HTTP 401", "HTTP 404", "HTTP 503"])
def test_a_server_that_fails_at_every_request_is_no_fault_of_a_prompt(status: str) -> None:
    code, answer = STATUSES[status]
    refused = code in (307, *range(400, 500))
    with (
        TextServer() as server,
        OpenAIEngine("tiny", base_urls=server.url, deadline=30 if refused else 0.4) as engine,
    ):
        server.answer = lambda path, _: (code, answer) if "completions" in path else None
        began = time.monotonic()
        for _ in range(2):  # a later request does not wait in vain either
            with pytest.raises(EngineError, match=f"{server.url}: ") as failed:
                write(engine, PROMPTS[0])
            assert status in str(failed.value) or code == 401
        assert time.monotonic() - began < 10
        assert not engine.available
        server.answer = lambda *_: None
        until = time.monotonic() + 10
        while not engine.available:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert write(engine, PROMPTS[0]).text
