"""Litellm's guardrail reads every place of a request where text may occur, and answers NONE or
BLOCKED by the policy of the key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.fakes import FakeScorer, RudeScorer
from tests.server.running import Running, running
from tide.core.chat import Chat
from tide.core.errors import ScorerUnavailableError
from tide.scorers.base import Attributed, Exchange
from tide.server.guardrail import GuardrailRequest
from tide.server.limits import Limits

INSULTS = ("you idiot", "\u0442\u044b \u0438\u0434\u0438\u043e\u0442")
CLEAN, FAILING = "The weather is fine.", "You are an idiot. Bring 2 coats."
USER = {"role": "user", "content": "May I insult him?"}
ASSISTANT = {"role": "assistant", "content": "No."}


def call(argument: str = "ls", **fields: Any) -> dict[str, Any]:
    function = {"name": "find", "arguments": json.dumps({"deep": [1, {"inner": argument}]})}
    return {"id": "call_1", "type": "function", "function": function, **fields}


def message(**fields: Any) -> dict[str, Any]:
    return {"structured_messages": [{"role": "user", "content": "Hello", **fields}]}


def schema(**fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"place": {"type": "string", **fields}}}
    function = {"name": "find", "description": "Finds.", "parameters": parameters}
    return {"tools": [{"type": "function", "function": function}], "texts": ["Hello"]}


# Requests with a text somewhere.
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "texts": lambda text: {"texts": ["Hello", text]},
    "beside a path": lambda text: {"texts": [f"{text} in C:\\new\\temp, and \\u00e9"]},
    "content": lambda text: message(content=text),
    "part": lambda text: message(content=[{"type": "text", "text": text, "cache_control": {}}]),
    "unknown field of a message": lambda text: message(field={"note": ["a text", text]}),
    "id of a call": lambda text: {"tool_calls": [call(id=text)]},
    "custom call": lambda text: {"tool_calls": [{"type": "custom", "custom": {"input": text}}]},
    "arguments": lambda text: {"tool_calls": [call(text)]},
    "JSON in arguments": lambda text: {"tool_calls": [call(json.dumps({"a": text}))]},
    "type of an argument": lambda text: schema(type=["null", text]),
    "name of an argument": lambda text: schema(properties={text: {}}),
    "unknown field": lambda text: {"texts": ["Hello"], "field": [{"id": text}]},
    "unknown key": lambda text: {"texts": ["Hello"], text: 1},
}


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


def hexadecimal(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode("latin-1"))


HIDDEN = [*INSULTS, escaped(INSULTS[1]), hexadecimal(INSULTS[0])]


@pytest.mark.parametrize("place", PLACES)
def test_an_insult_is_read_wherever_it_stands(place: str) -> None:
    for text in HIDDEN:
        request = GuardrailRequest(input_type="request", **PLACES[place](text))
        said = request.all_texts()
        assert any(insult in read for insult in INSULTS for read in said), text


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    scorer = FakeScorer(lambda text: float("idiot" in text or INSULTS[1] in text))
    with running(scorer=scorer) as server:
        yield server


def action(server: Running, *texts: str, **body: Any) -> str:
    body = {"input_type": "response", "request_data": {}, **body}
    if texts:
        body["texts"] = texts
    answer = server.post("/beta/litellm_basic_guardrail_api", body)
    assert answer.status_code == 200, answer.text
    assert ("blocked_reason" in answer.json()) == (answer.json()["action"] == "BLOCKED")
    return str(answer.json()["action"])


def answers(server: Running, outcome: str) -> float:
    labels = f'outcome="{outcome}",policy="default"'
    return server.metric(f"tide_guardrail_answers_total{{{labels}}}")


def test_an_unknown_attribute_blocks_and_is_named() -> None:
    def unknown(texts: Sequence[str]) -> Attributed:
        return Attributed(np.zeros(len(texts)), {"threat": np.full(len(texts), np.nan)})

    scorer = FakeScorer(attributes=("threat",), score_attributes=unknown)
    with running(scorer=scorer, thresholds={"threat": 0.5}) as server:
        body = {"input_type": "response", "texts": ["Hello"], "request_data": {}}
        answer = server.post("/beta/litellm_basic_guardrail_api", body).json()
    assert answer == {"action": "BLOCKED", "blocked_reason": "threat unknown"}


@pytest.mark.parametrize(
    ("surfaces", "expected"),
    [
        *((request("Hello"), "NONE") for request in PLACES.values()),
        ({"texts": [INSULTS[0]]}, "BLOCKED"),
        ({"texts": []}, "NONE"),
        ({}, "BLOCKED"),
        ({"texts": None, "structured_messages": []}, "BLOCKED"),
        ({"texts": [escaped(escaped(INSULTS[0]))]}, "BLOCKED"),
        ({"texts": [escaped(escaped(escaped(escaped(INSULTS[0]))))]}, "BLOCKED"),
        # A lone surrogate between escapes does not hide a text.
        ({"texts": ["\\ud83d you \\u0069diot"]}, "BLOCKED"),
        ({"texts": [json.dumps("\U0001f600 the weather")]}, "NONE"),
        # Content that cannot be read.
        ({"images": ["data:image/png;base64,AAAA"]}, "BLOCKED"),
        *(({"structured_messages": [{"role": "user", **part}]}, "BLOCKED") for part in (
            {"content": [{"type": "input_audio", "data": "AAAA"}]},
            {"content": [{"type": "image_url", "url": "http://x"}]},
            {"audio": {"id": 1}},
        )),
        ({"tool_calls": [{"type": "computer", "action": "a text"}]}, "BLOCKED"),
        *(({"texts": ["a text"], "extra": extra}, "BLOCKED") for extra in (
            {"note": "\ud83d"},
            {"\ud83d": "note"},
            {"note": {"audio": "AAAA"}},
            {"note": json.loads("[" * 900 + f'"{INSULTS[0]}"' + "]" * 900)},
        )),
    ],
)  # fmt: skip
def test_action_for_each_content(server: Running, surfaces: dict[str, Any], expected: str) -> None:
    assert action(server, **surfaces) == expected


def test_scorer_of_exchanges_reads_the_conversation() -> None:
    bad = Chat.of([USER])
    # Objects to a prompt without an answer, and to "Yes" after it.
    scorer = FakeScorer(
        lambda exchange: float(exchange.context == bad and exchange.text in ("", "Yes")),
        reads="exchange",
    )
    with running(scorer=scorer) as server:
        messages = {"structured_messages": [USER]}
        assert action(server, "x", input_type="request", **messages) == "BLOCKED"
        assert Exchange(Chat.of([USER]), "") in scorer.texts
        assert Exchange("", "x") in scorer.texts  # every text is scored, too
        assert action(server, "Yes", **messages) == "BLOCKED"
        assert action(server, "Yes") == "NONE"
        assert action(server, "Perhaps", **messages) == "NONE"
        older = {"role": "function", "name": "find", "content": "sunny"}
        for more in (ASSISTANT, older):
            assert action(server, "Yes", structured_messages=[USER, more]) == "BLOCKED"


@pytest.mark.parametrize("messages", [[], [ASSISTANT], [{"role": "robot", "content": "x"}], ["x"]])
def test_messages_that_are_no_chat_give_no_context(messages: list[Any]) -> None:
    body = {"input_type": "response", "texts": ["Yes"], "structured_messages": messages}
    request = GuardrailRequest.model_validate(body)
    assert Exchange("", "Yes") in request.exchanges(with_prompt=True)


def test_guardrail_blocks_and_logs_without_text(caplog: pytest.LogCaptureFixture) -> None:
    with running(scorer=RudeScorer()) as server, caplog.at_level(logging.INFO, "tide.server"):
        assert action(server, CLEAN) == "NONE"
        assert action(server, CLEAN, FAILING) == "BLOCKED"
        assert (answers(server, "passed"), answers(server, "blocked")) == (1, 1)
    (line,) = (json.loads(message) for message in caplog.messages if 'guardrail"' in message)
    assert (line["guardrail"]["outcome"], line["guardrail"]["score"]) == ("blocked", 1.0)
    assert "idiot" not in caplog.text


def test_guardrail_judges_more_texts_than_one_scoring_request_may_have() -> None:
    arguments = {f"argument {n}": {"type": f"kind {n}"} for n in range(300)}
    with running(scorer=RudeScorer(), limits=Limits(max_texts=50)) as server:
        for last, expected in (("fine", "NONE"), ("idiot", "BLOCKED")):
            function = {"name": "ask", "parameters": {"properties": arguments, "last": last}}
            assert action(server, CLEAN, tools=[{"function": function}]) == expected
        assert len(server.scorer.calls) > 20


def test_guardrail_of_a_monitored_policy_answers_none() -> None:
    def score(text: str) -> float:
        if "broken" in text:
            raise ScorerUnavailableError("down")
        return float("idiot" in text)

    with running(scorer=FakeScorer(score), mode="monitor") as server:
        for text in (CLEAN, FAILING, "broken"):
            assert action(server, text) == "NONE"
        assert action(server, CLEAN, images=["x"]) == "NONE"
        assert [answers(server, name) for name in ("passed", "blocked", "failed")] == [1, 2, 1]
        assert not server.engine.requests
