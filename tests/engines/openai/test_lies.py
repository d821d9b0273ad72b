"""Servers whose answers are no completions: an EngineError, and nothing is given out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.writing import completed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.openai.faults import LIES
from tests.engines.openai.server import TextServer, told
from tests.generated import examples
from tests.hostile import KEY, mutations
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture(scope="module")
def server() -> Iterator[TextServer]:
    with TextServer() as server:
        yield server


@pytest.fixture(scope="module")
def engine(server: TextServer) -> Iterator[OpenAIEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        with OpenAIEngine("tiny", base_url=server.url, timeout=5) as engine:
            yield engine


@pytest.mark.attack
@given(change=mutations(), is_chat=st.booleans())
@settings(examples(50, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_streams_are_a_text_or_an_error(
    change: Callable[[Any], Any], is_chat: bool, server: TextServer, engine: OpenAIEngine
) -> None:
    prompt = engine.text_of(Chat.said("kind") if is_chat else "kind")
    server.lie = lambda events: told(*change(events))
    refusal, completions = "", []
    try:
        completions = completed(engine, engine.tokenize([prompt]), GREEDY, [0])
    except CompletionError as error:
        refusal = str(error)
    finally:
        server.lie = None
    for completion in completions:
        completion.text.encode()  # no half of a character
        assert len(completion.token_ids) <= 6
    assert completions or refusal.startswith(server.url)
    assert KEY not in refusal
    assert len(refusal.splitlines()) <= 1


@pytest.mark.parametrize("lie", ["half an answer", "an unknown reason", "a number", "an error"])
def test_a_server_that_lies_is_not_begun_with(lie: str, server: TextServer) -> None:
    server.lie = LIES[lie]
    with pytest.raises(EngineError, match=f"^{server.url}: cannot be used: "):
        OpenAIEngine("tiny", base_url=server.url)
    server.lie = None


def test_an_echo(server: TextServer) -> None:
    honest = server.written
    server.written = lambda text, body: ([text, *honest(text, body)[0]], "length")  # type: ignore[method-assign]
    try:
        with pytest.raises(EngineError, match="repeats the prompt before its completion"):
            OpenAIEngine("tiny", base_url=server.url)
    finally:
        server.written = honest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "answer",
    [
        {"tokens": [-1]},
        {"tokens": [2**40]},
        {"tokens": [3, 4]},  # the ids of another text
        {},
        b"<html>",
    ],
    ids=lambda answer: json.dumps(answer) if isinstance(answer, dict) else "page",
)
def test_token_ids_that_are_none(answer: Any, server: TextServer) -> None:
    server.answer = lambda path, body: (200, answer) if path == "/tokenize" else None
    try:
        with pytest.raises(EngineError, match=r": cannot be used: .*(tokens|JSON)"):
            OpenAIEngine("tiny", base_url=server.url)
    finally:
        server.answer = lambda path, body: None


def test_a_chat_that_does_not_go_on_any_more(server: TextServer) -> None:
    """A server that begins a new message instead: its text is scored as it is, and not cut."""
    server.continues = False
    with OpenAIEngine("tiny", base_url=server.url) as engine:
        assert "redraws all" in engine.capability_notes
    server.continues = True
