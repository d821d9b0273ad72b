"""/v1/messages, as Anthropic's own client sees it, before a server that only knows chats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.server.gateways import FINE, PARAMETERS, TEXT, USER, gateway, losing_its_scorer, says
from tests.server.running import Running
from tide.core.chat import Parts, ToolCall
from tide.core.results import Usage
from tide.server.answers import Refused
from tide.server.generation import Sent
from tide.server.messages import MessageShape

TOOL: Any = {"name": "find", "description": "Finds.", "input_schema": PARAMETERS}
ASKED: dict[str, Any] = {"model": "scripted", "messages": [USER], "max_tokens": 100}


@pytest.fixture(scope="module")
def server(model_server: TextServer) -> Iterator[Running]:
    with gateway(model_server, reasoning="scored") as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def streamed(client: anthropic.Anthropic, **asked: Any) -> tuple[list[str], Any]:
    """The types of the events, and the message. All fit Anthropic's own schema."""
    kinds = []
    for event in client.messages.create(**ASKED | asked, stream=True):
        TypeAdapter(RawMessageStreamEvent).validate_python(event.to_dict())
        kinds.append(event.type)
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    with client.messages.stream(**ASKED | asked) as stream:
        return kinds[1:-2], stream.get_final_message()


def shown(message: Any) -> list[Any]:
    """The content without the ids of calls, which differ between a stream and a whole answer."""
    content = message.to_dict()["content"]
    return [{name: block[name] for name in block if name != "id"} for block in content]


def test_message_and_its_stream_hold_reasoning_text_and_calls(
    client: anthropic.Anthropic, server: Running, upstream: TextServer
) -> None:
    says(upstream, FINE)
    whole = client.messages.create(**ASKED, tools=[TOOL])
    Message.model_validate(whole.to_dict())
    assert (whole.stop_reason, whole.model) == ("tool_use", "scripted")
    thought, text, *calls = whole.content
    assert (thought.thinking, text.text) == (FINE.reasoning, FINE.text)
    assert [call.input for call in calls] == [
        {"where": "the town", "deep": [1, {"key": "value"}]},
        {},
    ]
    assert whole.usage.input_tokens > 0 < whole.usage.output_tokens
    assert whole.tide["accepted"]
    assert {FINE.text, FINE.reasoning, "find", "the town"} <= set(server.scorer.texts)
    kinds, message = streamed(client, tools=[TOOL])
    assert shown(message) == shown(whole)
    assert (message.stop_reason, message.usage) == (whole.stop_reason, whole.usage)
    assert kinds == [f"content_block_{kind}" for kind in ("start", "delta", "stop")] * 4


def test_text_of_a_message_is_streamed_in_pieces(
    upstream: TextServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(upstream, Said(TEXT))
    monkeypatch.setattr(upstream, "pause", 0.02)  # each event arrives alone
    with (
        gateway(upstream, strategy="backtrack:lag=0", on_fail={"default": "block"}) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any") as client,
    ):
        kinds, message = streamed(client)
        assert (message.content[0].text, message.stop_reason) == (TEXT, "end_turn")
        assert kinds.count("content_block_delta") > 2
        says(upstream, Said(TEXT, reason="length"))
        assert streamed(client)[1].stop_reason == "max_tokens"
        says(upstream, Said(f"{TEXT} They are dull."))
        message = streamed(client)[1]
        assert message.stop_reason == "refusal"
        assert message.content[0].text == f"{TEXT} They are"


@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
def test_message_names_the_stop_sequence_that_the_server_names(
    client: anthropic.Anthropic, upstream: TextServer, field: str
) -> None:
    """Fields of vLLM and SGLang; other words of the server would be unscored text."""
    stops: Any = {"stop_sequences": ["END", "OVER"]}
    for told, named in (("OVER", "OVER"), ("dull", None), (7, None), (None, None)):

        def message(_: Any, told: Any = told) -> Any:
            events = WIRES["vLLM"](Said(TEXT))
            events[-1]["choices"][0][field] = told
            return events

        upstream.message = message
        whole = client.messages.create(**ASKED, **stops)
        reason = "stop_sequence" if named else "end_turn"
        assert (whole.stop_reason, whole.stop_sequence) == (reason, named)
        streamed_message = streamed(client, **stops)[1]
        assert (streamed_message.stop_reason, streamed_message.stop_sequence) == (reason, named)


@pytest.mark.parametrize("options", [{}, {"reasoning": "scored"}, {"mode": "monitor"}])
def test_message_names_the_stop_sequence_that_cuts_its_text(
    model_server: TextServer, options: dict[str, Any]
) -> None:
    """As in process, where no server has stopped at it."""
    says(model_server, Said("The river is wide. It runs to the sea OVER there."))
    stops: Any = {"stop_sequences": ["END", "OVER"]}
    with (
        gateway(model_server, **options) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        for message in (client.messages.create(**ASKED, **stops), streamed(client, **stops)[1]):
            assert message.content[0].text == "The river is wide. It runs to the sea "
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "OVER")


def test_message_and_error_have_the_id_of_their_request(
    client: anthropic.Anthropic, upstream: TextServer
) -> None:
    says(upstream, Said(TEXT))
    asked = client.messages.with_raw_response
    answer = asked.create(**ASKED, extra_headers={"x-request-id": "mine"})
    assert answer.parse()._request_id == "mine"
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**ASKED | {"max_tokens": 0})
    assert caught.value.request_id


def test_message_fails_if_the_scorer_dies_in_its_middle(upstream: TextServer) -> None:
    with (
        losing_its_scorer(upstream) as server,
        anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error") as caught:
            list(client.messages.create(**ASKED, stream=True))
        assert caught.value.status_code == 200  # the stream had begun
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error") as caught:
            client.messages.create(**ASKED)
        assert caught.value.status_code == 503


def test_blocks_of_a_conversation_become_the_messages_of_a_chat(
    client: anthropic.Anthropic, upstream: TextServer
) -> None:
    says(upstream, FINE, Said('{"place": "there"}'))
    first = client.messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "any"})
    assert upstream.requests[0]["tool_choice"] == "required"
    upstream.requests.clear()
    calls = [block.id for block in first.content if block.type == "tool_use"]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": calls[0], "content": "east"},
        {"type": "tool_result", "tool_use_id": calls[1], "is_error": True},
        {"type": "text", "text": "Go on."},
    ]
    turns: list[Any] = [USER, first.to_param(), {"role": "user", "content": results}]
    client.messages.create(
        **ASKED | {"messages": turns},
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "find", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        extra_body={"temperature": 0.5},
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    (sent,) = upstream.requests
    system, user, assistant, *results = sent["messages"]
    assert (system, user) == ({"role": "system", "content": "Be kind."}, USER)
    assert assistant["content"] == FINE.text
    assert [call["id"] for call in assistant["tool_calls"]] == calls
    assert [tuple(call["function"].values()) for call in assistant["tool_calls"]] == FINE.calls
    assert results == [
        {"role": "tool", "tool_call_id": calls[0], "content": "east"},
        {"role": "tool", "tool_call_id": calls[1], "content": ""},
        {"role": "user", "content": "Go on."},
    ]
    function = {"name": "find", "description": "Finds.", "parameters": PARAMETERS}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "find"}}
    assert (sent["parallel_tool_calls"], sent["temperature"]) == (False, 0.5)
    assert sent["stop"] == ["END"]
    answer = {"name": "answer", "schema": {"type": "object"}}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": answer}
    assert "thinking" not in sent


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_call_that_is_cut_has_the_whole_part_of_its_arguments(
    client: anthropic.Anthropic, upstream: TextServer, reason: str
) -> None:
    says(upstream, Said(calls=[("find", '{"where": "the town", "who": "a ma')], reason=reason))
    whole = client.messages.create(**ASKED, tools=[TOOL])
    assert whole.stop_reason == {"length": "max_tokens", "content_filter": "refusal"}[reason]
    assert [block.input for block in whole.content] == [{"where": "the town"}]
    assert shown(streamed(client, tools=[TOOL])[1]) == shown(whole)


def test_system_message_may_follow_the_user(
    client: anthropic.Anthropic, upstream: TextServer
) -> None:
    says(upstream, Said(TEXT))
    turns: list[Any] = [USER, {"role": "system", "content": "Be brief."}]
    assert client.messages.create(**ASKED | {"messages": turns}).content[0].text == TEXT
    assert upstream.requests[-1]["messages"] == turns


def test_tool_runner_sends_whole_conversations(
    client: anthropic.Anthropic, upstream: TextServer
) -> None:
    @anthropic.beta_tool
    def find(where: str) -> str:
        """Find a place."""
        return f"{where} is found"

    says(upstream, Said(calls=[("find", '{"where": "the town"}')]), Said("It is found."))
    upstream.requests.clear()
    last = client.beta.messages.tool_runner(**ASKED, tools=[find]).until_done()
    assert last.content[0].text == "It is found."
    roles = [message["role"] for message in upstream.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


def with_arguments(arguments: str) -> Sent:
    parts = Parts(tool_calls=(ToolCall(id="a", name="find", arguments=arguments),))
    return Sent("", parts, "tool_calls", Usage(1, 1), {})


@pytest.mark.parametrize("arguments", ["[1]", "{", '{"a": NaN}'])
def test_call_without_an_object_is_an_error(arguments: str) -> None:
    with pytest.raises(Refused, match="not a JSON object"):
        list(MessageShape("x").end(0, "", with_arguments(arguments)))


def test_waiting_stream_sends_pings() -> None:
    comment, kind, data, *end = MessageShape("x").keep_alive.split("\n")
    assert comment.startswith(":")  # not counted as the first text
    assert (kind, data, end) == ("event: ping", 'data: {"type":"ping"}', ["", ""])
