"""Litellm's guardrail reads every place of a request where text may occur, and answers NONE or
BLOCKED by the policy of the key.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeScorer, RudeScorer
from tests.server.running import Running, digest_of, running, written
from tide.core.chat import Chat
from tide.core.errors import ScorerUnavailableError
from tide.core.sanitize import Unread
from tide.scorers import Exchange
from tide.server.guardrail import GuardrailRequest
from tide.server.limits import Limits

INSULTS = ("you idiot", "\u0442\u044b \u0438\u0434\u0438\u043e\u0442")
CLEAN, FAILING = "The weather is fine.", "You are an idiot. Bring 2 coats."
USER = {"role": "user", "content": "May I insult him?"}
ASSISTANT = {"role": "assistant", "content": "No."}

# Every place

ARGUMENTS = {"place": "Oslo", "days": [1, "two"], "options": {"unit": "celsius", "deep": [{}]}}
CALLS = [
    {
        "id": "call_1", "type": "function", "index": 0,
        "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)},
    },
    {"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
]  # fmt: skip
SCHEMA = {
    "type": "object", "required": ["place"],
    "properties": {
        "place": {"type": "string", "description": "where", "enum": ["Oslo"]},
        "file": {"type": ["string", "null"], "default": "none"},
    },
}  # fmt: skip
HELLO = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
BODY: dict[str, Any] = {
    "input_type": "request",
    "litellm_call_id": "1",
    "request_data": {"user_api_key_alias": "a team"},
    "texts": ["What is the weather?", "A file C:\\new\\temp, and \\u00e9"],
    "structured_messages": [
        {"role": "system", "content": "Be kind.", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "name": "ann", "content": [HELLO, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": None, "refusal": "No.", "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
    "tool_calls": CALLS,
    "tools": [
        {"type": "function", "function": {"name": "weather", "strict": True, "parameters": SCHEMA}}
    ],
    "a_field_of_the_future": {"note": ["a text", {"id": "x"}]},
}
_CALL_DATA = ("input_type", "litellm_call_id", "request_data")
Place = tuple[Any, ...]


def places(value: Any, at: Place = ()) -> Iterator[tuple[Place, bool]]:
    """Paths of all strings (False), and of all objects, which could have another key (True)."""
    if isinstance(value, dict):
        yield at, True
    if isinstance(value, str):
        yield at, False
        if at[-1] == "arguments":
            yield from places(json.loads(value), (*at, json))
    items = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else items:
        yield from places(inner, (*at, key))


def changed(value: Any, at: Place, is_key: bool, text: str, dump: Callable[[Any], str]) -> Any:
    """`value` with a text at a path. dump: writes JSON that is nested in a string."""
    if not at:
        return {**value, text: 1} if is_key else text
    step, rest = at[0], at[1:]
    if step is json:
        return dump(changed(json.loads(value), rest, is_key, text, dump))
    value = copy.copy(value)
    value[step] = changed(value[step], rest, is_key, text, dump)
    return value


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


PLACES = [(at, is_key) for at, is_key in places(BODY) if not at or at[0] not in _CALL_DATA]
# How the text is encoded, and how JSON that is nested in a string is written.
WAYS: dict[str, tuple[Callable[[str], str], Callable[[Any], str]]] = {
    "raw": (str, lambda value: json.dumps(value, ensure_ascii=False)),
    "as Python writes JSON": (str, json.dumps),
    "escaped": (escaped, json.dumps),
    "escaped by and by": (lambda text: escaped(escaped(escaped(escaped(text)))), json.dumps),
}


@pytest.mark.parametrize("insult", INSULTS)
@pytest.mark.parametrize("way", WAYS)
def test_an_insult_is_read_wherever_it_stands(way: str, insult: str) -> None:
    assert len(PLACES) > 80
    write, dump = WAYS[way]
    unread = []
    for at, is_key in PLACES:
        body = json.dumps(changed(BODY, at, is_key, write(insult), dump))
        with suppress(Unread):  # then the request is blocked
            said = GuardrailRequest.model_validate_json(body).all_texts()
            if not any(insult in text for text in said):
                unread.append((at, is_key))
    assert unread == []


# Answers


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


@pytest.mark.parametrize(
    ("surfaces", "expected"),
    [
        (BODY, "NONE"),
        ({**BODY, "texts": [INSULTS[0]]}, "BLOCKED"),
        ({"texts": []}, "NONE"),
        ({}, "BLOCKED"),
        ({"texts": None, "structured_messages": []}, "BLOCKED"),
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
def test_what_fails_or_cannot_be_read_is_blocked(
    server: Running, surfaces: dict[str, Any], expected: str
) -> None:
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
        assert action(server, "Yes", structured_messages=[USER, ASSISTANT]) == "BLOCKED"


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


@pytest.mark.parametrize(("threshold", "flagged"), [(0.2, True), (0.4, False)])
def test_guardrail_and_moderation_judge_by_the_threshold_of_the_policy(
    threshold: float, flagged: bool
) -> None:
    with running(scorer=FakeScorer(lambda _: 0.3), toxicity_threshold=threshold) as server:
        assert action(server, CLEAN) == ("BLOCKED" if flagged else "NONE")
        answer = server.post("/v1/moderations", {"input": CLEAN}).json()
        assert answer["results"][0]["flagged"] is flagged


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


def test_guardrail_applies_the_policy_of_the_key(tmp_path: Path) -> None:
    policies: dict[str, Any] = {"new": {"never": ["fine"]}, "old": {}}
    keys = {name: {"sha256": digest_of(f"sk-{name}"), "policies": [name]} for name in policies}
    path = written(tmp_path / "tide.yaml", policies=policies, keys=keys)
    with running(scorer=RudeScorer(), policies=path) as server:
        for name, expected in (("new", "BLOCKED"), ("old", "NONE")):
            server.http.headers["authorization"] = f"Bearer sk-{name}"
            assert action(server, CLEAN) == expected
