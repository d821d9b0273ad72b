"""Tools, reasoning and formats with `tide serve --engine openai`: all that is sent was scored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engines.openai.messages import WIRES, Said
from tests.engines.openai.server import TextServer
from tests.fakes import RudeScorer
from tests.server.running import Running, counted, running, wait_until
from tide.engines.openai.engine import OpenAIEngine
from tide.server.policies import PolicyError

# Passed on unchanged, with null values and unknown fields.
PARAMETERS = {"type": "object", "properties": {"a": {"enum": ["b", None], "default": None}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "find", "strict": None, "parameters": PARAMETERS}}
]
USER: dict[str, Any] = {"role": "user", "content": "Find the river."}
JSON = {"response_format": {"type": "json_object"}}
ARGUMENTS = '{"where": "the town", "deep": [1, {"key": "value"}]}'
FINE = Said("I look.", "They ask for a river.", [("find", ARGUMENTS), ("find", "{}")])
BAD = "wombat"


Serve = Callable[..., Any]


@pytest.fixture(scope="module")
def started(text_engine: OpenAIEngine) -> Iterator[Callable[..., Running]]:
    """Starts a server for given options, or returns the one that was started for them."""
    with ExitStack() as stack:

        @cache
        def start(**options: Any) -> Running:
            return stack.enter_context(running(text_engine, RudeScorer(BAD), **options))

        yield start


@pytest.fixture
def serve(text_server: TextServer, started: Callable[..., Running]) -> Serve:
    """A server whose model gives these answers in turn, and then repeats the last one."""

    @contextmanager
    def serve(*said: Said, wire: str = "vLLM", **options: Any) -> Iterator[Running]:
        left = list(said)

        def message(body: dict[str, Any]) -> Any:
            return WIRES[wire](left.pop(0) if len(left) > 1 else left[0])

        text_server.message = message
        server = started(**{"strategy": "backtrack", "toxicity_threshold": 0.5, **options})
        server.scorer.texts.clear()
        text_server.requests.clear()
        yield server

    return serve


def ask(server: Running, messages: Any = None, **more: Any) -> dict[str, Any]:
    """The whole answer to a chat with tools."""
    body = {"messages": messages or [USER], "tools": TOOLS, "max_tokens": 100, **more}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["choices"][0]
    return found


def streamed(server: Running, **more: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The deltas of a stream, and the last choice."""
    body = {"messages": [USER], "tools": TOOLS, "max_tokens": 100, **more}
    choices = [one["choices"][0] for one in server.events("/v1/chat/completions", **body)]
    return [one["delta"] for one in choices], choices[-1]


def called(message: dict[str, Any]) -> list[tuple[str, str]]:
    found = [one["function"] for one in message.get("tool_calls", ())]
    return [(one["name"], one["arguments"]) for one in found]


@pytest.mark.parametrize("wire", WIRES)
def test_what_passes_is_given_out_as_the_model_said_it(serve: Serve, wire: str) -> None:
    with serve(FINE, wire=wire, reasoning="scored") as server:
        choice = ask(server)
        message = choice["message"]
        assert (message["content"], message["reasoning_content"]) == (FINE.text, FINE.reasoning)
        assert (called(message), choice["finish_reason"]) == (list(FINE.calls), "tool_calls")
        assert choice["tide"]["accepted"]
        # All of it was scored before: the texts, the names, and each string and key.
        read = server.scorer.texts
        for text in (FINE.text, FINE.reasoning, ARGUMENTS, "find", "where", "the town", "key"):
            assert text in read
        deltas, last = streamed(server)
    assert [delta.get("role") for delta in deltas][:2] == ["assistant", None]
    names = [name for delta in deltas for name in delta if name != "role"]
    assert names == ["reasoning_content", "content", "tool_calls"]
    given = {name: value for delta in deltas for name, value in delta.items()}
    assert [one.pop("index") for one in given["tool_calls"]] == [0, 1]
    assert called(given) == list(FINE.calls)
    ids = [one["id"] for one in given["tool_calls"]]
    assert len({*ids, *(FINE.id_of(i) for i in range(2))}) == 4  # the model's ids are replaced
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert (given["content"], given["reasoning_content"]) == (FINE.text, FINE.reasoning)
    assert last["finish_reason"] == "tool_calls"


def test_a_conversation_with_tools_is_passed_on(serve: Serve, text_server: TextServer) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "sunny"}]},
    ]
    asks = {"tool_choice": "required", "parallel_tool_calls": False, **JSON}
    with serve(Said('"Sunny."')) as server:
        assert ask(server, turns, **asks)["message"]["content"] == '"Sunny."'
    body = text_server.requests[-1]
    assert {name: body[name] for name in asks} == asks
    assert body["tools"] == TOOLS
    assert body["messages"] == turns


def assert_refused(choice: dict[str, Any]) -> None:
    assert choice["finish_reason"] == "content_filter"
    message = choice["message"]
    assert message["content"] == ""
    assert not {"tool_calls", "reasoning_content"} & set(message)


def with_call(name: str = "find", arguments: str = "{}") -> Said:
    return Said("I look.", calls=[("find", "{}"), (name, arguments)])


AS_JSON = {"tools": [], **JSON}
# The tests of `strings_of_json` cover all places where a text may be hidden.
NOT_PASSING: dict[str, tuple[Said, dict[str, Any]]] = {
    "a text": (Said("A wombat.", calls=[("find", "{}")]), {}),
    "a name": (with_call(name="wombat"), {}),
    "an argument": (with_call(arguments='{"a": "a Wombat"}'), {}),
    "escapes": (with_call(arguments='{"a": "wo\\u006dbat"}'), {}),
    "no JSON, and fine": (with_call(arguments="the town"), {}),
    "half of JSON": (with_call(arguments='{"a": "the to'), {}),
    "reasoning": (Said("Fine.", "They ask for a wombat.", [("find", "{}")]), {}),
    "a thought": (Said("<think>A wombat.</think>Fine."), {}),
    "a thought without end": (Said("<think>A wombat"), {}),
    "the end of a thought": (Said("<think>Fine.</think> And </think> a wombat."), {}),
    "a key of a format": (Said('{"a wombat": 1}'), AS_JSON),
    "no JSON in a format": (Said("The river is there."), AS_JSON),
    "a format that is cut off": (Said('{"a": "the ri'), AS_JSON),
}


UNREADABLE = {
    *("no JSON, and fine", "half of JSON", "no JSON in a format", "a format that is cut off"),
}


@pytest.mark.parametrize("name", NOT_PASSING)
def test_what_does_not_pass_is_drawn_again_as_a_whole_and_then_refused(
    serve: Serve, text_server: TextServer, name: str
) -> None:
    bad, more = NOT_PASSING[name]
    with serve(bad, reasoning="scored", max_new_tokens=100) as server:
        refused = ask(server, seed=7, **more)
        assert_refused(refused)
        assert refused["tide"]["failed"] == (["json"] if name in UNREADABLE else ["toxicity"])
        requests = [*text_server.requests]
        assert len({body["seed"] for body in requests}) == len(requests) == 4
        assert len({body["temperature"] for body in requests[1:]}) == 1
        for body in requests:
            assert "logit_bias" not in body
            assert body.get("response_format") == more.get("response_format")
        deltas, last = streamed(server, **more)
        assert (deltas, last["finish_reason"]) == ([{"role": "assistant"}], "content_filter")
    good = Said('\n{"a": "the river"}') if more else FINE
    with serve(bad, bad, good, reasoning="scored") as server:
        before = server.metric(changed := 'tide_changed_completions_total{failed="whole"}')
        again = ask(server, **more)
        assert (again["message"]["content"], called(again["message"])) == (
            good.text, [*good.calls],
        )  # fmt: skip
        assert again["tide"]["rounds"] == len(text_server.requests) == 3
        assert server.metric(changed) == before + 1


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_reasoning_is_treated_as_the_policy_says(serve: Serve, tools: Any, tmp_path: Path) -> None:
    thought = "A wombat."
    policies = tmp_path / "tide.yaml"
    names = ("scored", "ignored", "withheld")
    policies.write_text(json.dumps({"policies": {name: {"reasoning": name} for name in names},
                                    "default": names}))  # fmt: skip
    for said in (Said("Fine.", thought), Said(f"<think>{thought}</think>Fine.")):
        with serve(said, policies=policies) as server:
            for name in names:
                asked: dict[str, Any] = {"tools": tools, "tide": {"policy": name}}
                deltas, _ = streamed(server, **asked)
                text = "".join(delta.get("content", "") for delta in deltas)
                thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
                choice = ask(server, **asked)
                if name == "scored":
                    assert_refused(choice)
                    assert text == thoughts == ""
                else:
                    shown = thought if name == "ignored" else ""
                    assert choice["message"]["content"] == text == "Fine."
                    assert choice["message"].get("reasoning_content", "") == thoughts == shown


def test_calls_are_treated_as_the_policy_says(serve: Serve) -> None:
    calls = [("find", '{"a": "wombat"}'), ("find", "no JSON")]
    with serve(Said("Fine.", calls=calls), tool_calls="ignored") as server:
        choice = ask(server)
        assert (called(choice["message"]), choice["finish_reason"]) == (calls, "tool_calls")
        assert not any(BAD in text for text in server.scorer.texts)
    with serve(Said("Fine.", calls=calls), tool_calls="withheld") as server:
        choice = ask(server)
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Fine.", "stop")
        assert "tool_calls" not in choice["message"]
        assert {name for delta in streamed(server)[0] for name in delta} == {"role", "content"}
    with serve(Said(calls=calls), tool_calls="withheld") as server:
        assert_refused(ask(server))


def test_a_call_without_text_is_an_answer(serve: Serve) -> None:
    with serve(Said(calls=[("find", "")])) as server:
        message = ask(server)["message"]
        assert (message["content"], called(message)) == (None, [("find", "")])


def test_calls_that_nobody_asked_for_never_leave(serve: Serve) -> None:
    with serve(Said("Fine.", calls=[("find", "{}")])) as server:
        for more in ({"tools": []}, {"tool_choice": "none"}, {"tools": [], **JSON}):
            body = {"messages": [USER], "tools": TOOLS, "max_tokens": 100, **more}
            for stream in (False, True):
                failed = server.http.post("/v1/chat/completions", json={**body, "stream": stream})
                assert failed.status_code == 500
                assert failed.json()["error"]["code"] == "completion_error"
        assert server.http.get("/ready").status_code == 200


def test_a_monitored_answer_is_the_models_own(serve: Serve, tmp_path: Path) -> None:
    rude = [("find", '{"a": "wombat"}'), ("find", "no JSON")]
    for number, (said, changed) in enumerate(
        [
            (FINE, False),
            (Said("Fine.", "Fine.", rude), True),
            (Said("Fine.", "A wombat."), False),  # enforcing would have withheld the reasoning
            (Said("<think>A wombat.</think>Fine."), False),
            (Said("<think>Fine.</think>A wombat."), True),
        ]
    ):
        log = tmp_path / f"{number}.jsonl"
        options = {"mode": "monitor", "monitor_log": log, "monitor_texts": True}
        for tools in ([], TOOLS) if not said.calls else (TOOLS,):
            with serve(said, **options) as server:
                body = {"messages": [USER], "tools": tools}
                events = server.events("/v1/chat/completions", **body)
                assert events == WIRES["vLLM"](said)
                # An answer without calls was already asked for without tools, from the same server.
                asked = 1 + (tools is TOOLS and not said.calls)
                wait_until(
                    lambda n=asked: counted(server, "changed") + counted(server, "unchanged") == n
                )
                assert counted(server, "changed") == (asked if changed else 0)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert all(line["would_change"] is changed for line in lines)
        assert [len(line.get("tool_calls", ())) for line in lines][:1] == [len(said.calls)]


TURNS = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "find", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "x", "content": "sunny"},
]  # fmt: skip


def with_function(**function: str) -> list[dict[str, Any]]:
    call = {"id": "x", "function": {"name": "find", "arguments": "{}", **function}}
    return [USER, {**TURNS[1], "tool_calls": [call]}, TURNS[2]]


@pytest.mark.parametrize(
    ("turns", "refused"),
    [
        (TURNS, False),
        ([*TURNS[:2], {**TURNS[2], "content": "a wombat"}], True),
        ([*TURNS[:2], {**TURNS[2], "content": '{"a": "wo\\u006dbat"}'}], True),
        (with_function(arguments='{"a": "wo\\u006dbat"}'), True),
        (with_function(arguments='{"wombat": 1}'), True),
        (with_function(name="wombat"), True),
        ([{**USER, "content": "a wombat"}, *TURNS[1:]], True),
        # An earlier turn was checked when it was the last.
        ([*TURNS[:2], {**TURNS[2], "content": "a wombat"}, USER], False),
    ],
)
def test_prompts_are_read_with_what_tools_were_told_and_answered(
    serve: Serve, turns: Any, refused: bool
) -> None:
    with serve(Said("Fine."), refuse_prompt_above=0.5) as server:
        body = {"messages": turns, "tools": TOOLS}
        answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == (400 if refused else 200)
        if refused:
            assert answer.json()["error"]["code"] == "content_filter"


def test_what_other_engines_do_not_take() -> None:
    with running() as server:
        for more in ({"tools": TOOLS}, JSON, {"messages": TURNS}):
            body = {"messages": [USER], **more}
            error = server.http.post("/v1/chat/completions", json=body).json()["error"]
            assert error["param"] == next(iter(more))
            assert "only the engine 'openai'" in error["message"]


@pytest.mark.parametrize("field", ["reasoning", "tool_calls"])
def test_a_policy_may_not_ask_what_an_engine_cannot_do(field: str, tmp_path: Path) -> None:
    path = tmp_path / "tide.yaml"
    path.write_text(json.dumps({"policies": {"fine": {}, "other": {field: "ignored"}}}))
    message = f"policies.other.{field}: only the engine 'openai'"
    with pytest.raises(PolicyError, match=message), running(policies=path):
        pass
