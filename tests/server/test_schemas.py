"""Parameters of requests: each is obeyed, ignored or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tests.server.running import ASKED, USER, Running, running
from tests.worlds import scripted_engine
from tide.server.answers import ReplyShape
from tide.server.guardrail import GuardrailRequest
from tide.server.limits import Limits
from tide.server.schemas import ChatRequest, CompletionRequest
from tide.server.scoring import AnalyzeRequest, ModerationRequest


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(limits=Limits(max_tokens=50, max_choices=4)) as found:
        yield found


TOOLS = [{"type": "function", "function": {"name": "find"}}]
FUNCTION = {"type": "function", "name": "find"}
CALL = {"id": "x", "function": {"name": "find", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "sunny"}
# Values that are refused, by field.
VALUES: dict[str, list[Any]] = {
    "logprobs": [0, 5, True], "echo": [True], "prompt_logprobs": [1],
    "prompt_embeds": ["AAAA"], "temperature": [-1, "1", True],
    "max_tokens": [51, 1.5, 0], "min_tokens": [10**6], "n": [0], "seed": [1 << 63],
    "stop": [3, "a\ud800", ["a", "b\ud800"]], "stream": ["yes"],
    "prompt": [[], [1, 2, 3], [[1, 2, 3]], ["x", 1], {"a": 1}],
}  # fmt: skip
# Options under `tide` can only be stricter than the server's.
OPTIONS: dict[str, Any] = {
    "no_such": 1, "strategy": "file.py:Class", "on_unresolved": "best",
    "max_iterations": 101, "accept_empty": True, "num_samples": 65, "deadline": "x",
    "trace": 1, "toxicity_threshold": 0.9, "max_new_tokens": 9,
}  # fmt: skip
# For each API, fields that are refused, and the name of the field in the error.
REFUSED: dict[str, list[tuple[dict[str, Any], str | None]]] = {
    "/v1/completions": [
        *[({name: value}, name) for name, values in VALUES.items() for value in values],
        ({"prompt": ["x", "b\ud800"]}, "prompt.1"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, None),  # it may be one of several prompts
        ({"prompt": " \n"}, None),
        *[({"tide": {name: value}}, f"tide.{name}") for name, value in OPTIONS.items()],
        ({"tide": {"toxicity_threshold": 0}}, "toxicity_threshold"),
        ({"tide": {"deadline": -1}}, "deadline"),
        ({"tide": []}, "tide"),
    ],
    "/v1/chat/completions": [
        *(({"messages": [{"role": "user", "content": [{"type": kind}]}]},
           "messages.0.content.0.type") for kind in ("image_url", "input_audio", "file")),
        ({"functions": [{"name": "find"}], "function_call": "auto"}, "functions"),
        ({"tools": [{"type": "custom", "custom": {"name": "find"}}]}, "tools.0.type"),
        ({"messages": [USER, {**CALLS, "function_call": CALL["function"]}]},
         "messages.1.function_call"),
        ({"response_format": {"type": "json_schema", "x": "\udc00"}}, "response_format"),
        ({"messages": [USER, CALLS]}, "messages"),
        ({"messages": [USER, CALLS, {"role": "tool", "content": "x"}]}, "messages.2"),
        ({"messages": [{**USER, "tool_call_id": "x"}]}, "messages.0"),
        ({"messages": [{"role": "user", "refusal": "No."}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "refusal"}]}]},
         "messages.0.content.0.text"),
        # Fields by which a server behind a gateway would read other text.
        ({"Messages": [USER]}, "Messages"),  # a server in Go reads them as messages
        ({"me\u017fsages": [USER]}, "me\u017fsages"),
        ({"messages": [{**USER, "Content": "x"}]}, "messages.0.Content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "Text": "y"}]}]},
         "messages.0.content.0.Text"),
        ({"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "x"}]}]},
         "messages.0.content.0.type"),
        ({"Echo": True}, "Echo"),
        ({"chat_template": "x"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template"),
        ({"chat_template_kwargs": {"messages": [USER]}}, "messages"),  # llama.cpp reads them
        ({"logit_bias": "x"}, "logit_bias"),  # it could not be joined with bans
        # Only a gateway takes these.
        ({"tools": TOOLS}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [USER, CALLS, RESULT]}, "messages"),
    ],
    "/v1/responses": [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
         "input.0.content.0.image_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input.0.content.0.type"),  # only a gateway takes it
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input"),
        ({"max_output_tokens": 10**7}, "max_output_tokens"),
        ({"text": "json"}, "text"),
        ({"reasoning": "high"}, "reasoning"),
        ({"Reasoning": {}}, "Reasoning"),
        ({"temperature": "hot"}, "temperature"),  # as a field of the chat
    ],
    "/v1/messages": [
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools.0.type"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]},
         "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "file", "file_id": "x"}}]}]},
         "messages.0.content.0.source"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": "x"}}]}]},
         "messages.0.content.0.type"),  # only a gateway takes it
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages"),  # a prefill
        ({"max_tokens": 10**7}, "max_tokens"),
        ({"output_config": "json"}, "output_config"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "param"), [(path, *row) for path, rows in REFUSED.items() for row in rows]
)
def test_what_cannot_be_done_is_refused_by_the_client_s_name(
    server: Running, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = server.post(path, {**ASKED[path], **body})
    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert answer.headers["x-should-retry"] == "false"
    assert error["type"] == "invalid_request_error"
    message = error["message"]
    assert message.startswith((param or "empty", "must be at most 0.1")), error
    assert len(message.splitlines()) == 1
    if path == "/v1/messages":
        assert answer.json()["type"] == "error"
    else:
        assert error["param"] == param


DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("field", ["unknown", "messages"])
def test_deeply_nested_body_is_refused(server: Running, path: str, field: str) -> None:
    answer = server.post(path, {**ASKED[path], field: [{"parameters": DEEP}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "body: nested more than 64 levels deep"


TURNS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "No."}, USER]
PART = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("turn", "as_sent"),
    [
        (0, {"content": [PART]}),
        (0, {"id": "m1", "timestamp": 1, "reasoning_content": "Hm."}),
        (1, {"content": None, "refusal": "No.", "tool_calls": None, "function_call": None}),
        (1, {"content": [{"type": "refusal", "refusal": "No."}]}),
    ],
)
def test_forms_of_messages(server: Running, turn: int, as_sent: dict[str, Any]) -> None:
    messages = [*TURNS]
    messages[turn] = messages[turn] | as_sent
    answer = server.chat(
        messages=messages, seed=1, presence_penalty=0.5, stream_options={"no_such": 1}
    )
    assert answer.json()["choices"] == server.chat(messages=TURNS, seed=1).json()["choices"]
    request = ChatRequest.model_validate({"messages": messages})
    assert request.chat() == ChatRequest.model_validate({"messages": TURNS}).chat()


def test_a_body_that_cannot_be_read_says_why(server: Running) -> None:
    for content, why in (
        ("{", "the body is not JSON: "),
        ("[1]", "body"),
        (f'{{"max_tokens": {"1" * 5000}}}', "value has 5000 digits"),
    ):
        answer = server.http.post("/v1/completions", content=content)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, None)
        assert why in error["message"]


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_media_type_of_a_page_and_of_a_client(server: Running, kind: str | None) -> None:
    """Pages of other sites may send a server on this machine all but what is called JSON."""
    headers = {} if kind is None else {"content-type": kind}
    for path, body in (*ASKED.items(), ("/v1/moderations", {"input": "x"})):
        content = json.dumps(body)
        assert server.http.post(path, content=content, headers=headers).status_code == 200
        headers_of_page = {**headers, "origin": "http://127.0.0.1:1"}
        refused = server.http.post(path, content=content, headers=headers_of_page)
        assert refused.status_code == 400
        assert "Content-Type: application/json" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("as_sent", "plain"),
    [
        ({"max_tokens": -1}, {}),
        ({"max_tokens": 6.0, "seed": 3.0, "n": 2.0}, {"max_tokens": 6, "seed": 3, "n": 2}),
        ({"top_k": 5.0}, {"top_k": 5}),
        ({"temperature": 1e-6}, {"temperature": 0}),
        ({"stop": ""}, {}),
        ({"stop": ["", " a"]}, {"stop": " a"}),
    ],
)
def test_forms_of_values(server: Running, as_sent: dict[str, Any], plain: dict[str, Any]) -> None:
    answers = [server.chat(**{"seed": 1, **body}).json() for body in (as_sent, plain)]
    assert answers[0]["choices"] == answers[1]["choices"]


MANY: list[Any] = [0] * 1000
MANY_NAMES = {f"a{i}": "x" for i in range(1000)}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"prompt": [{}] * 1000}),
        (CompletionRequest, {"prompt": "x", "tide": MANY_NAMES}),
        (CompletionRequest, {"prompt": "x", "tide": {"thresholds": MANY_NAMES}}),
        (ChatRequest, {"messages": MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": MANY}]}),
        (ChatRequest, {"messages": [USER], "tools": MANY}),
        (ModerationRequest, {"input": MANY}),
        (GuardrailRequest, {"input_type": "request", "texts": MANY}),
        (AnalyzeRequest, {"comment": {"text": "x"}, "requestedAttributes": MANY_NAMES}),
    ],
)
def test_many_faults_of_a_request(model: type[BaseModel], body: dict[str, Any]) -> None:
    """Reporting all faults would take a GiB, and block other clients for seconds."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 2


def test_what_is_too_long_or_too_much_is_refused(server: Running) -> None:
    long = server.ask("x " * 129).json()["error"]
    # Clients know this error by these words.
    words = "prompt is too long: this model's maximum context length is 128 tokens"
    assert words in long["message"]
    assert "shorten the prompt or lower max_tokens" in long["message"]
    assert long["code"] == "context_length_exceeded"
    for many in (server.ask(["x"] * 5), server.ask(n=5), server.ask(n=10**400)):
        assert many.json()["error"]["param"] == "n"


def test_settings_reach_the_engine() -> None:
    engine = scripted_engine()
    with running(engine, temperature=0.3, max_new_tokens=17) as server:
        server.ask(temperature=0.9, top_p=0.5, top_k=7, max_tokens=11)
        asked = engine.requests[-1].sampling
        assert (asked.temperature, asked.top_p, asked.top_k) == (0.9, 0.5, 7)
        assert asked.max_new_tokens == 11
        server.chat(max_completion_tokens=12, max_tokens=13)
        assert engine.requests[-1].sampling.max_new_tokens == 12
        server.ask()
        usual = engine.requests[-1].sampling
        assert (usual.temperature, usual.max_new_tokens) == (0.3, 17)


def test_addresses_that_are_none(server: Running) -> None:
    for path, status in (("/v1/no/such", 404), ("/v1/completions", 405)):
        answer = server.http.get(path)
        assert answer.status_code == status
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert server.http.get("/openapi.json").json()["paths"]["/v1/completions"]


@pytest.mark.parametrize("is_chat", [False, True])
def test_encoded_pieces_of_a_stream_are_its_chunks(is_chat: bool) -> None:
    pieces = ["Put", ' "the"\n', " eggs \u00e9\U0001f600", "\0"]
    shape = ReplyShape('a "model"\0', chat=is_chat, counts=False)
    chunks = [json.loads(shape.piece(0, text).removeprefix("data: ")) for text in pieces]
    for text, chunk in zip(pieces, chunks, strict=True):
        (choice,) = chunk["choices"]
        assert (choice["delta"]["content"] if is_chat else choice["text"]) == text
        assert (choice["index"], choice["finish_reason"]) == (0, None)
        assert chunk["model"] == 'a "model"\0'
    roles = [chunk["choices"][0].get("delta", {}).get("role") for chunk in chunks]
    assert roles == (["assistant", None, None, None] if is_chat else [None] * 4)
