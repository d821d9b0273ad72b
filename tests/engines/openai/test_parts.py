"""Reasoning and tool calls of an answer to a chat; `tests/server/test_parts.py` has all wires."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from benchmarks.writing import pieces_of

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import Events, TextServer
from tests.scripted_engine import ScriptedEngine
from tide.core.chat import Chat, Parts
from tide.core.errors import CompletionError, InputError
from tide.core.settings import Sampling, Settings
from tide.core.text import Thoughts
from tide.engines.base import Request
from tide.engines.openai.engine import OpenAIEngine

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
ASKS = {"tools": TOOLS, "tool_choice": "auto"}
USER = {"role": "user", "content": "Find the river."}
CALL = {"id": "abc", "type": "function", "function": {"name": "find", "arguments": '{"a": "b"}'}}
TURNS = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "abc", "content": "It is there."}]  # fmt: skip
DRAWN = Sampling(temperature=1.0, max_new_tokens=40)


def answered(
    engine: OpenAIEngine, chat: Chat, sampling: Sampling = DRAWN, **more: Any
) -> tuple[str, Parts, str | None]:
    (ids,) = engine.tokenize([engine.render(chat)])
    pieces = asyncio.run(pieces_of(engine, Request(ids, sampling, **more)))
    assert all(piece.parts == Parts() for piece in pieces[:-1])
    (text,) = engine.texts([[i for piece in pieces for i in piece.token_ids]])
    return text, pieces[-1].parts, pieces[-1].finish_reason


def calls_of(parts: Parts) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in parts.tool_calls]


def delta(**parts: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": parts, "finish_reason": None}]}


def call(index: Any, **parts: Any) -> dict[str, Any]:
    fields = {} if index is None else {"index": index}
    function = {name: parts.pop(name) for name in ("name", "arguments") if name in parts}
    return {**fields, **parts, "function": function}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return delta(tool_calls=list(calls))


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
F = call(0, name="f")


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        # Two calls in one event, whose further pieces alternate.
        (
            [
                calling(call(0, id="a", name="f", arguments="["), call(1, id="b", name="g")),
                calling(call(1, arguments="{}"), call(0, arguments="]")),
            ],
            [("f", "[]"), ("g", "{}")],
        ),
        # One index for two calls, and an index that does not begin at 0.
        (
            [calling(call(7, id="a", name="f")), calling(call(7, id="b", name="g", arguments="1"))],
            [("f", ""), ("g", "1")],
        ),
        # Neither an index nor an id.
        (
            [calling(call(None, name=name, arguments=name)) for name in "fg"],
            [("f", "f"), ("g", "g")],
        ),
        # An id with every piece, and an id that comes late.
        (
            [calling(call(0, id="a", name="f")), calling(call(0, id="a", arguments="2"))],
            [("f", "2")],
        ),
        ([calling(F), calling(call(0, id="a", arguments="2"))], [("f", "2")]),
        # A second name for a call is not appended to the first.
        ([calling(F), calling(call(0, name="g", arguments="1"))], [("f", "1")]),
        ([calling(call(-1, name="f"))], [("f", "")]),
    ],
)
def test_calls_are_put_together_by_index_and_id(
    text_engine: OpenAIEngine, upstream: TextServer, events: Events, calls: list[tuple[str, str]]
) -> None:
    upstream.message = lambda body: [*events, END]
    assert calls_of(answered(text_engine, Chat.of([USER], ASKS))[1]) == calls


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([calling(call(0, arguments="{}"))], id="no name"),
        pytest.param([calling(call(0, name=5))], id="a number for a name"),
        pytest.param([calling(*[F] * 129)], id="many in an event"),
        pytest.param([calling(call(i, name="f")) for i in range(5000)], id="thousands"),
        pytest.param([calling(call(0, name="f", arguments="x" * 9000))] * 2, id="too long"),
        pytest.param([delta(reasoning="x" * 9000)] * 2, id="endless reasoning"),
        pytest.param([calling(call(0, name="f", arguments="\ud800"))], id="half a character"),
        pytest.param([delta(reasoning_content="\udc00")], id="half a character, thought"),
        pytest.param([END, calling(F)], id="a call after the end"),
        pytest.param([END, delta(reasoning="so")], id="reasoning after the end"),
    ],
)
def test_what_is_no_answer(text_engine: OpenAIEngine, upstream: TextServer, events: Events) -> None:
    upstream.message = lambda body: [*events, END]
    with pytest.raises(CompletionError):
        answered(text_engine, Chat.of([USER], ASKS))


@pytest.mark.parametrize(
    "asks", [{}, {**ASKS, "tool_choice": "none"}, {"response_format": {"type": "json_object"}}]
)
def test_calls_that_nobody_asked_for_are_refused(
    text_engine: OpenAIEngine, upstream: TextServer, asks: dict[str, Any]
) -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    upstream.message = lambda body: [calling(F), end]
    with pytest.raises(CompletionError, match="called a tool although the request had no tools"):
        answered(text_engine, Chat.of([USER], asks))


@pytest.mark.parametrize(
    ("text", "reasoning", "rest"),
    [
        ("<think>They ask.</think>\n\nFine.", "They ask.", "\n\nFine."),
        ("\n <think>\nThey\n</think>Fine.", "\nThey\n", "Fine."),
        ("<think>They ask, and so on", "They ask, and so on", ""),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
        ("<think>a<think>b</think>c", "a<think>b", "c"),
        ("<think></think>", "", ""),
        ("<think>a</thin", "a</thin", ""),
        ("Fine <think>a</think>", "", "Fine <think>a</think>"),
        ("<thi", "", "<thi"),
        ("<thinking>a", "", "<thinking>a"),
        ("</think>a", "", "</think>a"),
        ("", "", ""),
    ],
)
def test_reasoning_that_the_text_begins_with(
    text_engine: OpenAIEngine, upstream: TextServer, text: str, reasoning: str, rest: str
) -> None:
    for size in (1, 2, 5, 100):
        thoughts = Thoughts()
        parts = [text[i : i + size] for i in range(0, len(text), size)]
        assert "".join([*map(thoughts.add, parts), thoughts.end()]) == rest
        assert thoughts.reasoning == reasoning
    upstream.message = lambda body: WIRES["Ollama"](Said(text, "Before. "))
    for asks in ({}, ASKS):
        answer, said, _ = answered(text_engine, Chat.of([USER], asks))
        assert (answer, said.reasoning) == (rest, "Before. " + reasoning)


def test_reasoning_in_both_fields_is_told_once(
    text_engine: OpenAIEngine, upstream: TextServer
) -> None:
    both = delta(reasoning="They", reasoning_content="They", content="")
    upstream.message = lambda body: [both, *WIRES["vLLM"](Said("Fine."))]
    assert answered(text_engine, Chat.of([USER]))[1].reasoning == "They"


def test_a_call_is_no_answer_that_is_too_short(
    text_engine: OpenAIEngine, upstream: TextServer
) -> None:
    upstream.message = lambda body: WIRES["vLLM"](Said(calls=[("f", "{}")]))
    least = DRAWN.limited(40, 5)
    assert calls_of(answered(text_engine, Chat.of([USER], ASKS), least)[1]) == [("f", "{}")]


@pytest.mark.parametrize(
    ("chat", "goes_on"),
    [(Chat.of([USER]), True), (Chat.of([USER], ASKS), False), (Chat.of(TURNS), False)],
)
def test_a_chat_in_parts_is_not_gone_on_with(
    chat: Chat, goes_on: bool, text_engine: OpenAIEngine
) -> None:
    (ids,) = text_engine.tokenize([text_engine.render(chat)])
    assert text_engine.supports_continuation(ids) is goes_on


@pytest.mark.parametrize("settings", [{"tool_calls": "ignored"}, {"reasoning": "scored"}])
def test_other_engines_do_not_separate_them_from_the_text(settings: dict[str, Any]) -> None:
    (field,) = settings
    with ScriptedEngine(lambda x, seed: "") as engine, pytest.raises(InputError, match=f"^{field}"):
        engine.check_sampling(Settings.model_validate(settings))
