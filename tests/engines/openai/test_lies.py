"""Servers whose answers are no completions: an EngineError, and nothing is given out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from benchmarks.writing import completed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.openai.faults import LIES, TOLD
from tests.engines.openai.server import TextServer, told
from tests.generated import examples
from tests.hostile import KEY, mutations
from tide.core.chat import Chat
from tide.core.errors import CompletionError, EngineError
from tide.core.settings import Sampling
from tide.engines.openai.engine import OpenAIEngine

GREEDY = Sampling(temperature=0.0, max_new_tokens=6)


@pytest.fixture(scope="module")
def connected() -> Iterator[tuple[TextServer, OpenAIEngine]]:
    with TextServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        with OpenAIEngine("tiny", base_url=server.url, timeout=5) as engine:
            yield server, engine


@pytest.mark.attack
@given(change=mutations(), is_chat=st.booleans())
@settings(examples(50, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_streams_are_a_text_or_an_error(
    change: Callable[[Any], Any], is_chat: bool, connected: tuple[TextServer, OpenAIEngine]
) -> None:
    server, engine = connected
    prompt = engine.text_of(Chat.said("kind") if is_chat else "kind")
    server.dialect = lambda events: told(*change(events))
    refusal, completions = "", []
    try:
        completions = completed(engine, engine.tokenize([prompt]), GREEDY, [0])
    except CompletionError as error:
        refusal = str(error)
    for completion in completions:
        completion.text.encode()  # no half of a character
        assert len(completion.token_ids) <= 6
    assert completions or refusal.startswith(server.url)
    assert KEY not in refusal
    assert len(refusal.splitlines()) <= 1


def tokenizes(answer: Any) -> dict[str, Any]:
    """A server that answers so to /tokenize."""
    return {"answer": lambda path, body: (200, answer) if path == "/tokenize" else None}


def repeats_the_prompt(text: str, body: dict[str, Any]) -> tuple[list[str], str]:
    return [text, " kind"], "length"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"dialect": LIES["half an answer"]}, "without a finish", id="half an answer"),
        pytest.param({"dialect": TOLD["an error"]}, "out of memory", id="an error"),
        pytest.param({"written": repeats_the_prompt}, "repeats the prompt before", id="an echo"),
        pytest.param(tokenizes({"tokens": [-1]}), "tokens", id="a negative id"),
        pytest.param(tokenizes({"tokens": [2**40]}), "tokens", id="a large id"),
        pytest.param(tokenizes({"tokens": [3, 4]}), "tokens", id="the ids of another text"),
        pytest.param(tokenizes({}), "tokens", id="no ids"),
        pytest.param(tokenizes(b"<html>"), "JSON", id="a page"),
    ],
)
def test_a_server_that_lies_is_not_begun_with(options: dict[str, Any], problem: str) -> None:
    with (
        TextServer(**options) as server,
        pytest.raises(EngineError, match=f"^{server.url}: cannot be used: .*{problem}"),
    ):
        OpenAIEngine("tiny", base_url=server.url)
