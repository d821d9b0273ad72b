"""/v1/responses and /v1/messages before a server that only knows chats, as the clients of OpenAI
and Anthropic see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

import anthropic
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.server.gateways import ARGUMENTS, FINE, PARAMETERS, TEXT, Serve, gateway, says
from tests.server.running import USER, Running
from tide.core.chat import Parts, ToolCall
from tide.core.errors import ScorerUnavailableError
from tide.core.results import Usage
from tide.server.answers import Refused
from tide.server.generation import Sent
from tide.server.messages import MessageShape

MESSAGE_EVENT = TypeAdapter(RawMessageStreamEvent)
RESPONSE_EVENT = TypeAdapter(ResponseStreamEvent)
CUT = '{"where": "the town", "who": "a ma'


class Client:
    client: Any

    def close(self) -> None:
        self.client.close()


class Messages(Client):
    """Anthropic's client. Answers and events fit its own schema."""

    asked: ClassVar = {"model": "scripted", "messages": [USER], "max_tokens": 100}
    tool: ClassVar = {"name": "find", "description": "Finds.", "input_schema": PARAMETERS}
    ends: ClassVar = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
    }
    calls_of_fine: ClassVar = [("find", json.loads(ARGUMENTS)), ("find", {})]
    text_event = "content_block_delta"
    events_of_fine: ClassVar = [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 4,
        *("message_delta", "message_stop"),
    ]

    def __init__(self, url: str) -> None:
        self.client = anthropic.Anthropic(base_url=url, api_key="any", max_retries=0)

    def whole(self, **more: Any) -> Any:
        message = self.client.messages.create(**self.asked | more)
        Message.model_validate(message.to_dict())
        return message

    def streamed(self, **more: Any) -> tuple[list[str], Any]:
        """The types of the events, and the message."""
        events = list(self.client.messages.create(**self.asked | more, stream=True))
        for event in events:
            MESSAGE_EVENT.validate_python(event.to_dict())
        with self.client.messages.stream(**self.asked | more) as stream:
            return [event.type for event in events], stream.get_final_message()

    def shown(self, message: Any) -> tuple[list[Any], str]:
        """The reasoning, the text and the calls in turn, and why they ended."""
        parts = []
        for block in message.content:
            if block.type == "tool_use":
                parts.append((block.name, block.input))
            else:
                parts.append(block.thinking if block.type == "thinking" else block.text)
        return parts, message.stop_reason


class Responses(Client):
    """OpenAI's client, like `Messages`."""

    asked: ClassVar = {"model": "scripted", "input": "Find the river."}
    tool: ClassVar = {"type": "function", "name": "find", "strict": True, "parameters": PARAMETERS}
    ends: ClassVar = {
        "stop": "completed",
        "length": "max_output_tokens",
        "tool_calls": "completed",
        "content_filter": "content_filter",
    }
    calls_of_fine: ClassVar = FINE.calls
    text_event = "output_text.delta"
    events_of_fine: ClassVar = [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]

    def __init__(self, url: str) -> None:
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)

    def whole(self, **more: Any) -> Any:
        response = self.client.responses.create(**self.asked | more)
        Response.model_validate(response.to_dict())
        return response

    def streamed(self, **more: Any) -> tuple[list[str], Any]:
        events = list(self.client.responses.create(**self.asked | more, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        for event in events:
            RESPONSE_EVENT.validate_python(event.to_dict())
        response = events[-1].response
        assert events[-1].type == f"response.{response.status}"
        return [event.type.removeprefix("response.") for event in events], response

    def shown(self, response: Any) -> tuple[list[Any], str]:
        parts = []
        for item in response.output:
            if item.type == "function_call":
                parts.append((item.name, item.arguments))
            else:
                parts.append(item.content[0].text)
            assert item.status == ("completed" if item.type == "reasoning" else response.status)
        details = response.incomplete_details
        return parts, details.reason if details else response.status


@pytest.fixture(scope="module")
def server(model_server: TextServer) -> Iterator[Running]:
    with gateway(model_server, reasoning="scored") as server:
        yield server


@pytest.fixture(params=[Messages, Responses])
def api(server: Running, request: pytest.FixtureRequest) -> Iterator[Any]:
    with closing(request.param(server.url)) as client:
        yield client


@pytest.fixture
def messages(server: Running) -> Iterator[Messages]:
    with closing(Messages(server.url)) as client:
        yield client


@pytest.fixture
def responses(server: Running) -> Iterator[Responses]:
    with closing(Responses(server.url)) as client:
        yield client


@pytest.fixture
def losing_its_scorer(upstream: TextServer) -> Iterator[Running]:
    """A gateway to a model that writes TEXT; its scorer fails in the last sentence."""

    def scorer(texts: list[str]) -> list[float]:
        if any("left" in text for text in texts):
            raise ScorerUnavailableError("down")
        return [0.0] * len(texts)

    says(upstream, Said(TEXT))
    with gateway(upstream, scorer, strategy="backtrack:pace=word,lag=0") as server:
        upstream.pause = 0.02  # each event arrives alone
        yield server


def test_reasoning_text_and_calls(api: Any, server: Running, upstream: TextServer) -> None:
    says(upstream, FINE)
    whole = api.whole(tools=[api.tool])
    parts = [FINE.reasoning, FINE.text, *api.calls_of_fine]
    assert api.shown(whole) == (parts, api.ends["tool_calls"])
    assert whole.model == "scripted"
    assert whole.usage.input_tokens > 0 < whole.usage.output_tokens
    assert whole.tide["accepted"]
    assert {FINE.text, FINE.reasoning, "find", "the town"} <= set(server.scorer.texts)
    events, streamed = api.streamed(tools=[api.tool])
    assert api.shown(streamed) == api.shown(whole)
    assert streamed.usage == whole.usage
    assert events == api.events_of_fine


def test_server_gets_no_field_that_it_may_refuse(api: Any, upstream: TextServer) -> None:
    """OpenAI refuses an empty list of tools, as vLLM does, and metadata of what is not stored."""
    says(upstream, Said(TEXT))
    api.whole(metadata={"user_id": "x"})
    (sent,) = upstream.requests
    assert sent.keys() - {"max_tokens"} == {"messages", "model", "stream", "stream_options"}


@pytest.mark.parametrize("api", [Messages, Responses])
def test_pieces_of_text(api: Any, upstream: TextServer) -> None:
    answers = {
        "stop": (Said(TEXT), TEXT),
        "length": (Said(TEXT, reason="length"), TEXT),
        "content_filter": (Said(f"{TEXT} They are dull."), f"{TEXT} They are"),
    }
    options = {"strategy": "backtrack:lag=0", "on_fail": {"default": "block"}}
    with gateway(upstream, **options) as server, closing(api(server.url)) as client:
        upstream.pause = 0.02  # each event arrives alone
        for reason, (said, text) in answers.items():
            says(upstream, said)
            events, answer = client.streamed()
            assert client.shown(answer) == ([text], client.ends[reason])
            assert events.count(client.text_event) > 2


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_call_that_is_cut_is_said_to_be(api: Any, upstream: TextServer, reason: str) -> None:
    """Anthropic's arguments are an object, so the whole part of them is sent."""
    says(upstream, Said(calls=[("find", CUT)], reason=reason))
    whole = api.whole(tools=[api.tool])
    arguments = {"where": "the town"} if isinstance(api, Messages) else CUT
    assert api.shown(whole) == ([("find", arguments)], api.ends[reason])
    assert api.shown(api.streamed(tools=[api.tool])[1]) == api.shown(whole)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, "invalid_request_error"), (500, "api_error"), (529, "overloaded_error")],
)
def test_error_of_the_server_names_the_fields_of_the_client(
    status: int, kind: str, messages: Messages, responses: Responses, upstream: TextServer
) -> None:
    error = {"message": "response_format: no schema; max_tokens", "param": "response_format.schema"}
    upstream.answer = lambda path, body: (status, {"error": error}) if body else None
    with pytest.raises(openai.APIStatusError, match=r"text\.format: no schema; max_output_"):
        responses.whole()
    with pytest.raises(anthropic.APIStatusError, match=rf"{kind}.*output_config\.format\.s"):
        messages.whole()


def assistant_again(ids: list[str]) -> dict[str, Any]:
    """The message FINE, as a server gets it back. ids: of the calls."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in FINE.calls]
    calls = [
        {"id": call_id, "type": "function", "function": function}
        for call_id, function in zip(ids, functions, strict=True)
    ]
    return {"role": "assistant", "content": FINE.text, "tool_calls": calls}


def image_of_chat(url: str, **more: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


NAMED = {"type": "function", "function": {"name": "find"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/a.png"}}
INPUT_IMAGE = {"type": "input_image", "image_url": "http://x/a.png", "detail": "low"}
SCHEMA = {"type": "object"}


def test_answer_fails_if_the_scorer_dies_in_its_middle(losing_its_scorer: Running) -> None:
    with closing(Messages(losing_its_scorer.url)) as api:
        for ask, status in ((api.streamed, 200), (api.whole, 503)):  # the stream had begun
            with pytest.raises(anthropic.APIStatusError, match="overloaded_error") as caught:
                ask()
            assert caught.value.status_code == status
    with closing(Responses(losing_its_scorer.url)) as api:
        events, response = api.streamed()
        assert (events[-1], response.error.code) == ("failed", "server_error")
        assert "the scorer is unavailable" in response.error.message
        with pytest.raises(openai.InternalServerError, match="the scorer is unavailable"):
            api.whole()


# /v1/messages


def test_conversation_of_blocks(messages: Messages, upstream: TextServer) -> None:
    says(upstream, FINE, Said('{"place": "there"}'))
    first = messages.whole(tools=[messages.tool], tool_choice={"type": "any"})
    calls = [block.id for block in first.content if block.type == "tool_use"]
    drawn = image_of_chat("data:image/png;base64,AAAA")
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    results = [
        {"type": "tool_result", "tool_use_id": calls[0], "content": "east"},
        {"type": "tool_result", "tool_use_id": calls[1], "is_error": True},
        {"type": "tool_result", "tool_use_id": calls[0], "content": [IMAGE]},
        {"type": "text", "text": "Go on."},
        {"type": "image", "source": source},
    ]
    last = {"role": "system", "content": "Be brief."}
    messages.whole(
        messages=[USER, first.to_param(), {"role": "user", "content": results}, last],
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        tools=[messages.tool],
        tool_choice={"type": "tool", "name": "find", "disable_parallel_tool_use": True},
        stop_sequences=["END"],
        extra_body={"temperature": 0.5},
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    before, sent = upstream.requests
    assert before["tool_choice"] == "required"
    assert sent["messages"] == [
        {"role": "system", "content": "Be kind."},
        USER,
        assistant_again(calls),
        {"role": "tool", "tool_call_id": calls[0], "content": "east"},
        {"role": "tool", "tool_call_id": calls[1], "content": ""},
        {"role": "tool", "tool_call_id": calls[0], "content": [image_of_chat("http://x/a.png")]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}, drawn]},
        last,
    ]
    function = {"name": "find", "description": "Finds.", "parameters": PARAMETERS}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    expected = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": NAMED,
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "stop": ["END"],
        "response_format": form,
    }
    assert sent.items() >= expected.items()
    assert "thinking" not in sent


def test_tool_runner_sends_whole_conversations(messages: Messages, upstream: TextServer) -> None:
    @anthropic.beta_tool
    def find(where: str) -> str:
        """Find a place."""
        return f"{where} is found"

    says(upstream, Said(calls=[("find", '{"where": "the town"}')]), Said("It is found."))
    last = messages.client.beta.messages.tool_runner(**messages.asked, tools=[find]).until_done()
    assert last.content[0].text == "It is found."
    roles = [message["role"] for message in upstream.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


STOPS: Any = {"stop_sequences": ["END", "OVER"]}


def assert_ended(api: Messages, text: str, reason: str, sequence: str | None) -> None:
    """Whole and in a stream."""
    for message in (api.whole(**STOPS), api.streamed(**STOPS)[1]):
        assert message.content[0].text == text
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)


@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
@pytest.mark.parametrize("told", ["OVER", "dull", 7, None])
def test_stop_that_is_named(
    messages: Messages, upstream: TextServer, field: str, told: Any
) -> None:
    """Fields of vLLM and SGLang; other words of the server would be unscored text."""
    events = WIRES["vLLM"](Said(TEXT))
    events[-1]["choices"][0][field] = told
    upstream.message = lambda _: events
    reason, sequence = ("stop_sequence", told) if told == "OVER" else ("end_turn", None)
    assert_ended(messages, TEXT, reason, sequence)


@pytest.mark.parametrize("options", [{}, {"reasoning": "scored"}, {"mode": "monitor"}])
def test_stop_sequence_that_cuts_a_message(serve: Serve, options: dict[str, Any]) -> None:
    """As in process, where no server has stopped at it."""
    server = serve(Said("The river is wide. It runs to the sea OVER there."), **options)
    text = "The river is wide. It runs to the sea "
    with closing(Messages(server.url)) as api:
        assert_ended(api, text, "stop_sequence", "OVER")


def test_id_of_a_message_and_of_an_error(messages: Messages, upstream: TextServer) -> None:
    says(upstream, Said(TEXT))
    assert messages.whole(extra_headers={"x-request-id": "mine"})._request_id == "mine"
    with pytest.raises(anthropic.BadRequestError) as caught:
        messages.whole(max_tokens=0)
    assert caught.value.request_id


@pytest.mark.parametrize("arguments", ["[1]", "{", '{"a": NaN}'])
def test_call_without_an_object_is_an_error(arguments: str) -> None:
    parts = Parts(tool_calls=(ToolCall(id="a", name="find", arguments=arguments),))
    sent = Sent("", parts, "tool_calls", Usage(1, 1), {})
    with pytest.raises(Refused, match="not a JSON object"):
        list(MessageShape("x").end(0, "", sent))


def test_waiting_stream_sends_pings() -> None:
    comment, kind, data, *end = MessageShape("x").keep_alive.split("\n")
    assert comment.startswith(":")  # not counted as the first text
    assert (kind, data, end) == ("event: ping", 'data: {"type":"ping"}', ["", ""])


# /v1/responses


def test_conversation_of_items(responses: Responses, upstream: TextServer) -> None:
    says(upstream, FINE, Said('{"place": "there"}'))
    said = {"type": "input_text", "text": "Find it."}
    turns: list[Any] = [{"role": "user", "content": [said, INPUT_IMAGE]}]
    find = {"type": "function", "name": "find"}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [find]}
    first = responses.whole(
        input=turns, instructions="Be kind.", tools=[responses.tool], tool_choice=choice
    )
    assert first.tool_choice.to_dict() == choice
    calls = [item.call_id for item in first.output if item.type == "function_call"]
    turns += [item.to_dict() for item in first.output]
    turns += [{"type": "function_call_output", "call_id": x, "output": "east"} for x in calls]
    turns.append({"type": "function_call_output", "call_id": calls[0], "output": [INPUT_IMAGE]})
    schema = {"type": "json_schema", "name": "place", "schema": SCHEMA}
    responses.whole(
        input=turns,
        tools=[responses.tool],
        tool_choice=find,
        text={"format": schema, "verbosity": "low"},
        reasoning={"effort": "low"},
        max_output_tokens=50,
        temperature=0.5,
        store=True,
        include=["reasoning.encrypted_content"],
        extra_body={"seed": 3},
    )
    before, sent = upstream.requests
    assert before["messages"][0] == {"role": "system", "content": "Be kind."}
    allowed = {"mode": "auto", "tools": [NAMED]}
    assert before["tool_choice"] == {"type": "allowed_tools", "allowed_tools": allowed}
    image = image_of_chat("http://x/a.png", detail="low")
    assert sent["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Find it."}, image]},
        assistant_again(calls),
        *({"role": "tool", "tool_call_id": x, "content": "east"} for x in calls),
        {"role": "tool", "tool_call_id": calls[0], "content": [image]},
    ]
    function = {"name": "find", "strict": True, "parameters": PARAMETERS}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    expected = {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": NAMED,
        "response_format": form,
        "max_tokens": 50,
        "temperature": 0.5,
        "seed": 3,
        "verbosity": "low",
        "reasoning_effort": "low",
    }
    assert sent.items() >= expected.items()
    assert not {"store", "include", "input", "text", "reasoning"} & set(sent)


def test_refusal_is_a_part_of_its_own(responses: Responses, upstream: TextServer) -> None:
    form = {"format": {"type": "json_object"}}
    says(upstream, Said("I cannot help.", field="refusal"))
    whole = responses.whole(text=form)
    refusal = {"type": "refusal", "refusal": "I cannot help."}
    assert whole.output[0].content[0].to_dict() == refusal
    events, streamed = responses.streamed(text=form)
    assert streamed.output[0].content[0].to_dict() == refusal
    assert events[4:6] == ["refusal.delta", "refusal.done"]
    responses.whole(input=[USER, whole.output[0].to_dict(), USER])
    assert upstream.requests[-1]["messages"][1]["content"] == "I cannot help."
