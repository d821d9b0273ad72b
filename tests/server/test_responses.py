"""/v1/responses, as OpenAI's own client sees it, before a server that only knows chats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.engines.openai.messages import Said
from tests.engines.openai.server import TextServer
from tests.server.gateways import FINE, PARAMETERS, TEXT, gateway, losing_its_scorer, says
from tests.server.running import Running

TOOL: Any = {"type": "function", "name": "find", "strict": True, "parameters": PARAMETERS}
ASKED: dict[str, Any] = {"model": "scripted", "input": "Find the river."}
TEXT_EVENTS = ["output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
CALL_EVENTS = ["output_item.added", *(f"function_call_arguments.{x}" for x in ("delta", "done"))]


@pytest.fixture(scope="module")
def server(model_server: TextServer) -> Iterator[Running]:
    with gateway(model_server, reasoning="scored") as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def streamed(client: openai.OpenAI, **asked: Any) -> tuple[list[str], Any]:
    """The types of the events, and the response in the last one. All fit OpenAI's own schema."""
    events = list(client.responses.create(**ASKED | asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.to_dict())
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    return kinds[2:], events[-1].response


def shown(response: Any) -> list[Any]:
    """The output without its ids, which differ between a stream and a whole answer."""
    output = response.to_dict()["output"]
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


def test_response_and_its_stream_hold_reasoning_text_and_calls(
    client: openai.OpenAI, server: Running, upstream: TextServer
) -> None:
    says(upstream, FINE)
    whole = client.responses.create(**ASKED, tools=[TOOL])
    Response.model_validate(whole.to_dict())
    assert (whole.status, whole.output_text, whole.model) == ("completed", FINE.text, "scripted")
    thought, _, *calls = whole.output
    assert thought.content[0].text == FINE.reasoning
    assert [(call.name, call.arguments) for call in calls] == list(FINE.calls)
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens > 0
    assert whole.tide["accepted"]
    assert {FINE.text, FINE.reasoning, "find", "the town"} <= set(server.scorer.texts)
    kinds, last = streamed(client, tools=[TOOL])
    assert shown(last) == shown(whole)
    assert kinds == [
        *("output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", *TEXT_EVENTS),
        *([*CALL_EVENTS, "output_item.done"]) * 2,
        "completed",
    ]
    with client.responses.stream(**ASKED, tools=[TOOL]) as stream:
        assert stream.get_final_response().output_text == FINE.text


def test_text_of_a_response_is_streamed_in_pieces(
    upstream: TextServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(upstream, Said(TEXT))
    monkeypatch.setattr(upstream, "pause", 0.02)  # each event arrives alone
    with (
        gateway(upstream, strategy="backtrack:lag=0", on_fail={"default": "block"}) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client,
    ):
        kinds, last = streamed(client)
        assert last.output_text == TEXT
        assert kinds.count("output_text.delta") > 2
        says(upstream, Said(TEXT, reason="length"))
        kinds, last = streamed(client)
        assert (kinds[-1], last.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        says(upstream, Said(f"{TEXT} They are dull."))
        kinds, last = streamed(client)
        assert (kinds[-1], last.incomplete_details.reason) == ("incomplete", "content_filter")
        assert last.output[0].status == "incomplete"
        assert last.output_text == f"{TEXT} They are"


def test_refusal_in_place_of_an_asked_form_is_a_part_of_its_own(
    client: openai.OpenAI, upstream: TextServer
) -> None:
    text: Any = {"format": {"type": "json_object"}}
    says(upstream, Said("I cannot help.", field="refusal"))
    whole = client.responses.create(**ASKED, text=text)
    Response.model_validate(whole.to_dict())
    assert whole.output[0].content[0].to_dict() == {"type": "refusal", "refusal": "I cannot help."}
    kinds, last = streamed(client, text=text)
    assert shown(last) == shown(whole)
    assert kinds[2:4] == ["refusal.delta", "refusal.done"]
    turns: list[Any] = [{"role": "user", "content": "Find it."}, whole.output[0].to_dict()]
    turns.append({"role": "user", "content": "Why?"})
    client.responses.create(**ASKED | {"input": turns})
    assert upstream.requests[-1]["messages"][1]["content"] == "I cannot help."


def test_call_that_is_cut_is_incomplete(client: openai.OpenAI, upstream: TextServer) -> None:
    says(upstream, Said(calls=[("find", '{"where": "the to')], reason="length"))
    whole = client.responses.create(**ASKED, tools=[TOOL])
    assert [item.status for item in whole.output] == ["incomplete"]
    assert whole.incomplete_details.reason == "max_output_tokens"


def test_response_fails_if_the_scorer_dies_in_its_middle(upstream: TextServer) -> None:
    with (
        losing_its_scorer(upstream) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        kinds, last = streamed(client)
        assert (kinds[-1], last.error.code) == ("failed", "server_error")
        assert "the scorer is unavailable" in last.error.message
        with pytest.raises(openai.InternalServerError, match="the scorer is unavailable"):
            client.responses.create(**ASKED)


def test_items_of_a_conversation_become_the_messages_of_a_chat(
    client: openai.OpenAI, upstream: TextServer
) -> None:
    says(upstream, FINE, Said('{"place": "there"}'))
    turns: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Find it."}]}]
    first = client.responses.create(
        **ASKED | {"input": turns}, instructions="Be kind.", tools=[TOOL], tool_choice="required"
    )
    turns += [item.to_dict() for item in first.output]
    calls = [item.call_id for item in first.output if item.type == "function_call"]
    turns += [{"type": "function_call_output", "call_id": x, "output": "east"} for x in calls]
    schema = {"type": "json_schema", "name": "place", "schema": {"type": "object"}}
    upstream.requests.clear()
    client.responses.create(
        **ASKED | {"input": turns},
        tools=[TOOL],
        tool_choice={"type": "function", "name": "find"},
        text={"format": schema, "verbosity": "low"},
        reasoning={"effort": "low"},
        max_output_tokens=50,
        temperature=0.5,
        store=True,
        include=["reasoning.encrypted_content"],
        extra_body={"seed": 3},
    )
    (sent,) = upstream.requests
    user, assistant, *results = sent["messages"]
    assert user == {"role": "user", "content": "Find it."}
    assert assistant["content"] == FINE.text
    assert [call["id"] for call in assistant["tool_calls"]] == calls
    assert [tuple(call["function"].values()) for call in assistant["tool_calls"]] == FINE.calls
    assert results == [{"role": "tool", "tool_call_id": x, "content": "east"} for x in calls]
    function = {"name": "find", "strict": True, "parameters": PARAMETERS}
    named = {"type": "function", "function": {"name": "find"}}
    assert (sent["tools"], sent["tool_choice"]) == (
        [{"type": "function", "function": function}],
        named,
    )
    answer = {"name": "place", "schema": {"type": "object"}}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": answer}
    assert (sent["max_tokens"], sent["temperature"], sent["seed"]) == (50, 0.5, 3)
    assert (sent["verbosity"], sent["reasoning_effort"]) == ("low", "low")
    assert not {"store", "include", "input", "text", "reasoning"} & set(sent)
