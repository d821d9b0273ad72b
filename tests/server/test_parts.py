"""Tools, reasoning and formats with `tide serve --engine openai`: all that is sent was scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.server.gateways import ARGUMENTS, BAD, FINE, PARAMETERS, Serve, choice_of, says
from tests.server.running import USER, Running, counted, wait_until, written
from tide.core.chat import forms_of
from tide.server.schemas import ChatRequest

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "find", "strict": None, "parameters": PARAMETERS}}
]
JSON = {"response_format": {"type": "json_object"}}
PATH = "/v1/chat/completions"


def ask(server: Running, **more: Any) -> Any:
    """The answer to a chat with tools."""
    return choice_of(server, **{"tools": TOOLS, "max_tokens": 100, **more})


def streamed(server: Running, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The deltas of a stream, and the last choice."""
    body = {"messages": [USER], "tools": TOOLS, "max_tokens": 100, **more}
    choices = [event["choices"][0] for event in server.events(PATH, **body)]
    return [choice["delta"] for choice in choices], choices[-1]


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


@pytest.mark.parametrize("wire", WIRES)
def test_what_passes_is_given_out_as_the_model_said_it(serve: Serve, wire: str) -> None:
    server = serve(FINE, wire=wire, reasoning="scored")
    choice = ask(server)
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == (FINE.text, FINE.reasoning)
    assert (called(message), choice["finish_reason"]) == (list(FINE.calls), "tool_calls")
    assert choice["tide"]["accepted"]
    # All of it was scored before: the texts, the names, and each string and key.
    parts = {FINE.text, FINE.reasoning, ARGUMENTS, "find", "where", "the town", "key"}
    assert parts <= set(server.scorer.texts)
    deltas, last = streamed(server)
    assert [delta.get("role") for delta in deltas][:2] == ["assistant", None]
    names = [name for delta in deltas for name in delta if name != "role"]
    assert names == ["reasoning_content", "content", "tool_calls"]
    given = {name: value for delta in deltas for name, value in delta.items()}
    assert [call.pop("index") for call in given["tool_calls"]] == [0, 1]
    assert called(given) == list(FINE.calls)
    ids = [call["id"] for call in given["tool_calls"]]
    assert len({*ids, *(FINE.id_of(i) for i in range(2))}) == 4  # the model's ids are replaced
    assert (given["content"], given["reasoning_content"]) == (FINE.text, FINE.reasoning)
    assert last["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("told", "passes"),
    [("functions.find:0", True), ("functions.dull:0", False), ("functions.find:0 dull", False)],
)
def test_id_of_a_call_of_kimi_passes_if_it_holds_no_other_text(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, told: str, passes: bool
) -> None:
    monkeypatch.setattr(Said, "id_of", lambda *_: told)
    (call,) = ask(serve(Said(calls=[("find", "{}")])))["message"]["tool_calls"]
    assert (call["id"] == told) == passes


CALL = {"id": "x", "type": "function", "function": {"name": "find", "arguments": "{}"}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "sunny"}


def test_a_conversation_with_tools_is_passed_on(serve: Serve, upstream: TextServer) -> None:
    turns = [USER, CALLED, {**RESULT, "content": [{"type": "text", "text": "sunny"}]}]
    asks = {"tool_choice": "required", "parallel_tool_calls": False, **JSON}
    server = serve(Said('"Sunny."'))
    assert ask(server, messages=turns, **asks)["message"]["content"] == '"Sunny."'
    sent = upstream.requests[-1]
    assert sent.items() >= {**asks, "tools": TOOLS, "messages": turns}.items()


def assert_refused(choice: dict[str, Any]) -> None:
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["content"] == ""
    assert not {"tool_calls", "reasoning_content"} & set(choice["message"])


def with_call(name: str = "find", arguments: str = "{}") -> Said:
    return Said("I look.", calls=[("find", "{}"), (name, arguments)])


AS_JSON = {"tools": [], **JSON}
TOXIC, UNREADABLE = ["toxicity"], ["json"]


# The tests of `strings_of_json` cover all places where a text may be hidden.
@pytest.mark.parametrize(
    ("bad", "failed", "more"),
    [
        pytest.param(Said("A dull.", calls=[("find", "{}")]), TOXIC, {}, id="text"),
        pytest.param(with_call(name="dull"), TOXIC, {}, id="name"),
        pytest.param(with_call(arguments='{"a": "du\\u006cl"}'), TOXIC, {}, id="argument"),
        pytest.param(with_call(arguments='{"a": "the to'), UNREADABLE, {}, id="half of JSON"),
        pytest.param(Said("Fine.", "A dull.", [("find", "{}")]), TOXIC, {}, id="reasoning"),
        pytest.param(Said("<think>A dull.</think>Fine."), TOXIC, {}, id="thought"),
        pytest.param(Said("<think>Fine.</think> </think> dull."), TOXIC, {}, id="after a thought"),
        pytest.param(Said('{"a dull": 1}'), TOXIC, AS_JSON, id="key of a format"),
        pytest.param(Said('{"a": "the ri'), UNREADABLE, AS_JSON, id="format that is cut off"),
    ],
)
def test_what_does_not_pass_is_drawn_again_as_a_whole_and_then_refused(
    serve: Serve, upstream: TextServer, bad: Said, failed: list[str], more: dict[str, Any]
) -> None:
    server = serve(bad, reasoning="scored", max_new_tokens=100)
    refused = ask(server, seed=7, **more)
    assert_refused(refused)
    assert refused["tide"]["failed"] == failed
    assert len(upstream.requests) == 4
    for body in upstream.requests:
        assert "logit_bias" not in body
        assert body.get("response_format") == more.get("response_format")
    deltas, last = streamed(server, **more)
    assert (deltas, last["finish_reason"]) == ([{"role": "assistant"}], "content_filter")

    good = Said('\n{"a": "the river"}') if more else FINE
    server = serve(bad, bad, good, reasoning="scored")
    again = ask(server, **more)
    assert again["message"]["content"] == good.text
    assert called(again["message"]) == [*good.calls]
    assert again["tide"]["rounds"] == len(upstream.requests) == 3


def test_refusal_in_place_of_an_asked_form(serve: Serve, upstream: TextServer) -> None:
    refusal = Said("I cannot help.", field="refusal")
    server = serve(refusal)
    choice = ask(server, **AS_JSON)
    message = choice["message"]
    assert (message["content"], message["refusal"]) == (None, refusal.text)
    assert choice["finish_reason"] == "stop"
    assert refusal.text in server.scorer.texts
    deltas, _ = streamed(server, **AS_JSON)
    assert {name: value for delta in deltas for name, value in delta.items()} == {
        "role": "assistant",
        "refusal": refusal.text,
    }
    assert ask(server, tools=[])["message"]["content"] == refusal.text
    for more in (AS_JSON, {"tools": []}):
        says(upstream, Said("A dull refusal.", field="refusal"))
        assert BAD not in json.dumps(ask(server, **more)["message"])


@pytest.mark.parametrize(
    "form",
    [
        {"guided_json": {"type": "object"}},
        {"json_schema": {"type": "object"}},
        {"structured_outputs": {"json_object": True}},
        {"nvext": {"guided_json": {"type": "object"}}},
        {"grammar": "root ::= object"},
    ],
)
@pytest.mark.parametrize("text", [r'{"a": "\u0064ull"}', r"root \u0064ull", r'{"a": "\u0064ull'])
def test_escapes_are_resolved_in_the_form_that_a_field_of_the_server_asks_for(
    serve: Serve, upstream: TextServer, form: dict[str, Any], text: str
) -> None:
    server = serve(Said(text, reason="length"))
    assert_refused(ask(server, tools=[], **form))
    assert upstream.requests[0].items() >= form.items()
    fine = text.replace("0064ull", "0066ine")
    says(upstream, Said(fine, reason="length"))
    assert ask(server, tools=[], **form)["message"]["content"] == fine


@pytest.mark.parametrize(
    ("form", "is_json"),
    [
        ({"guided_json": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"guided_json": None}, False),
        ({"grammar": ""}, False),
        ({"response_format": {"type": "text"}}, False),
    ],
)
def test_prompt_is_not_completed_by_json(serve: Serve, form: dict[str, Any], is_json: bool) -> None:
    answer = serve().post("/v1/completions", {"prompt": "A town", **form})
    assert answer.status_code == (400 if is_json else 200)
    assert not is_json or answer.json()["error"]["param"] in form
    chat = ChatRequest.model_validate({"messages": [USER], **form})
    assert chat.chat(forms_of(chat.for_server())).in_parts is is_json


def test_escapes_in_the_form_of_a_policy(serve: Serve, upstream: TextServer) -> None:
    form = {"guided_json": {"type": "object"}}
    server = serve(Said(r'{"a": "\u0064ull"}'), server_fields=json.dumps(form))
    assert_refused(ask(server, tools=[]))
    assert upstream.requests[0].items() >= form.items()
    says(upstream, Said("A kind text."))
    assert ask(server, tools=[], guided_json=None)["message"]["content"] == "A kind text."
    assert server.post("/v1/completions", {"prompt": "A town"}).status_code == 400


@pytest.mark.parametrize("tools", [TOOLS, []])
@pytest.mark.parametrize("said", [Said("Fine.", "A dull."), Said("<think>A dull.</think>Fine.")])
@pytest.mark.parametrize(
    ("treatment", "text", "thoughts"),
    [("scored", "", ""), ("ignored", "Fine.", "A dull."), ("withheld", "Fine.", "")],
)
def test_treatment_of_reasoning(
    serve: Serve, said: Said, tools: Any, treatment: str, text: str, thoughts: str
) -> None:
    server = serve(said, reasoning=treatment)
    choice = ask(server, tools=tools)
    message = choice["message"]
    assert (message["content"], message.get("reasoning_content", "")) == (text, thoughts)
    assert choice["finish_reason"] == ("stop" if text else "content_filter")
    deltas, _ = streamed(server, tools=tools)
    assert "".join(delta.get("content", "") for delta in deltas) == text
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == thoughts


def test_treatment_of_calls(serve: Serve) -> None:
    calls = [("find", '{"a": "dull"}'), ("find", "no JSON")]
    server = serve(Said("Fine.", calls=calls), tool_calls="ignored")
    choice = ask(server)
    assert (called(choice["message"]), choice["finish_reason"]) == (calls, "tool_calls")
    assert not any(BAD in text for text in server.scorer.texts)

    server = serve(Said("Fine.", calls=calls), tool_calls="withheld")
    choice = ask(server)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Fine.", "stop")
    assert "tool_calls" not in choice["message"]
    assert {name for delta in streamed(server)[0] for name in delta} == {"role", "content"}


def test_a_call_without_text_is_an_answer(serve: Serve) -> None:
    message = ask(serve(Said(calls=[("find", "")])))["message"]
    assert (message["content"], called(message)) == (None, [("find", "")])


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (FINE, "unchanged"),
        (Said("Fine.", "Fine.", [("find", '{"a": "dull"}'), ("find", "no JSON")]), "changed"),
        (Said("Fine.", "A dull."), "unchanged"),  # enforcing would have withheld the reasoning
        (Said("<think>A dull.</think>Fine."), "unchanged"),
        (Said("<think>Fine.</think>A dull."), "changed"),
    ],
)
def test_monitored_calls_and_reasoning(
    serve: Serve, said: Said, outcome: str, tmp_path: Path
) -> None:
    log = tmp_path / "monitor.jsonl"
    server = serve(said, mode="monitor", monitor_log=log, monitor_texts=True)
    asked = [TOOLS] if said.calls else [[], TOOLS]
    for tools in asked:
        assert server.events(PATH, messages=[USER], tools=tools) == WIRES["vLLM"](said)
    wait_until(lambda: counted(server, outcome) == len(asked))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines[0].get("tool_calls", ())) == len(said.calls)


def calling(**function: str) -> dict[str, Any]:
    function = {"name": "find", "arguments": "{}", **function}
    return {**CALLED, "tool_calls": [{"id": "x", "function": function}]}


def said(*parts: Any) -> list[dict[str, Any]]:
    """A message with an image beside these parts."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [{"role": "user", "content": [*parts, image]}]


ESCAPED = '{"a": "du\\u006cl"}'


@pytest.mark.parametrize(
    ("turns", "refused"),
    [
        ([USER, CALLED, RESULT], False),
        ([USER, CALLED, {**RESULT, "content": "a dull"}], True),
        ([USER, CALLED, {**RESULT, "content": ESCAPED}], True),
        ([USER, calling(arguments=ESCAPED), RESULT], True),
        ([USER, calling(name="dull"), RESULT], True),
        ([{**USER, "content": "a dull"}, CALLED, RESULT], True),
        # An earlier turn was checked when it was the last.
        ([USER, CALLED, {**RESULT, "content": "a dull"}, USER], False),
        ([{"role": "system", "content": None}, {"role": "assistant"}, USER], False),
        ([USER, {"role": "assistant", "content": "A dull river"}], True),
        (said(), False),
        (said({"type": "text", "text": "What is it?"}), False),
        (said({"type": "text", "text": "How dull is it?"}), True),
        (said({"type": "input_text", "text": "How dull is it?"}), True),  # vLLM reads it as text
        (said({"type": "thinking", "thinking": "How dull is it?"}), True),
        # Mistral's models think in a list of texts, which clients send back.
        (said({"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}), False),
        (said({"type": "thinking", "thinking": [{"type": "text", "text": "A dull one"}]}), True),
    ],
)
def test_scored_prompt(serve: Serve, upstream: TextServer, turns: Any, refused: bool) -> None:
    answer = serve(Said("Fine."), refuse_prompt_above=0.5).chat(messages=turns)
    if refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")
        assert not upstream.requests
    else:
        assert answer.status_code == 200
        assert upstream.requests[0]["messages"] == turns


def test_shadow_scores_an_answer_of_tool_calls_alone(serve: Serve, tmp_path: Path) -> None:
    policies = {"main": {"shadow": "other"}, "other": {"never": ["river"]}}
    file = written(tmp_path / "tide.yaml", policies=policies)
    server = serve(Said(calls=[("find", '{"where": "the river"}')]), policies=file)
    ask(server)
    wait_until(lambda: counted(server, "changed", "other", "main") == 1)
