"""Litellm's guardrail reads every place of a request where text may occur."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.fakes import FakeScorer
from tests.server.running import Running, running
from tide.core.chat import Chat
from tide.core.sanitize import Unread
from tide.scorers import Exchange
from tide.server.guardrail import GuardrailRequest

INSULTS = ("you idiot", "\u0442\u044b \u0438\u0434\u0438\u043e\u0442")
ARGUMENTS = {"place": "Oslo", "days": [1, "two"], "options": {"unit": "celsius", "deep": [{}]}}
CALLS = [
    {
        "id": "call_1", "type": "function", "index": 0,
        "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)},
    },
    {"id": "call_2", "type": "custom", "custom": {"name": "shell", "input": "ls"}},
]  # fmt: skip
BODY: dict[str, Any] = {
    "input_type": "request",
    "litellm_call_id": "1",
    "request_data": {"user_api_key_alias": "a team"},
    "texts": ["What is the weather?", "A file C:\\new\\temp, and \\u00e9"],
    "structured_messages": [
        {"role": "system", "content": "Be kind.", "cache_control": {"type": "ephemeral"}},
        {"role": "developer", "content": "Be brief.", "name": "us"},
        {
            "role": "user", "name": "ann",
            "content": [
                {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "there"},
            ],
        },
        {"role": "assistant", "content": None, "refusal": "No.", "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
    "tool_calls": CALLS,
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "weather", "description": "The weather of a place", "strict": True,
                "parameters": {
                    "type": "object", "required": ["place"],
                    "properties": {
                        "place": {"type": "string", "description": "where", "enum": ["Oslo"]},
                        "file": {"type": ["string", "null"], "default": "none"},
                    },
                },
            },
        }
    ],
    "a_field_of_the_future": {"note": ["a text", {"id": "x"}]},
}  # fmt: skip
_CALL_DATA = ("input_type", "litellm_call_id", "request_data")
Path = tuple[Any, ...]


def places(value: Any, at: Path = ()) -> Iterator[tuple[Path, bool]]:
    """Paths of all strings (False), and of all objects, which could have another key (True)."""
    if isinstance(value, dict):
        yield at, True
    if isinstance(value, str):
        yield at, False
        if at[-1] == "arguments":
            yield from places(json.loads(value), (*at, json))
    items = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else items:
        yield from places(one, (*at, key))


def changed(value: Any, at: Path, is_key: bool, text: str, dump: Callable[[Any], str]) -> Any:
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
    "escaped by hex": (lambda text: "".join(f"\\x{b:02x}" for b in text.encode("latin-1")), str),
    "escaped twice": (lambda text: json.dumps(escaped(text))[1:-1], json.dumps),
    "escaped by and by": (lambda text: escaped(escaped(escaped(escaped(text)))), json.dumps),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    def scorer(texts: list[str]) -> list[float]:
        return [float(any(insult in text for insult in INSULTS)) for text in texts]

    with running(scorer=scorer) as found:
        yield found


def action(server: Running, **body: Any) -> str:
    body = {"input_type": "response", "request_data": {}, **body}
    answer = server.post("/beta/litellm_basic_guardrail_api", body)
    assert answer.status_code == 200
    assert ("blocked_reason" in answer.json()) == (answer.json()["action"] == "BLOCKED")
    return str(answer.json()["action"])


@pytest.mark.parametrize("way", WAYS)
def test_an_insult_is_read_wherever_it_stands(way: str) -> None:
    assert len(PLACES) > 80
    write, dump = WAYS[way]
    for insult in INSULTS[: 1 if way == "escaped by hex" else 2]:
        unread = []
        for at, is_key in PLACES:
            if way == "escaped by hex" and json in at:
                continue
            body = json.dumps(changed(BODY, at, is_key, write(insult), dump))
            with suppress(Unread):  # then the request is blocked
                said = GuardrailRequest.model_validate_json(body).all_texts()
                if not any(insult in text for text in said):
                    unread.append((at, is_key))
        assert unread == []


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
            {"\ud83d": {"image_url": "http://x"}},
            {"note": {"audio": "AAAA"}},
            {"note": json.loads("[" * 900 + f'"{INSULTS[0]}"' + "]" * 900)},
        )),
    ],
)  # fmt: skip
def test_what_fails_or_cannot_be_read_is_blocked(
    server: Running, surfaces: dict[str, Any], expected: str
) -> None:
    assert action(server, **surfaces) == expected


USER = {"role": "user", "content": "May I insult him?"}
ASSISTANT = {"role": "assistant", "content": "No."}


def test_scorer_of_exchanges_reads_the_conversation() -> None:
    bad = Chat.of([USER])
    # Objects to a prompt without an answer, and to "Yes" after it.
    scorer = FakeScorer(
        lambda exchange: float(exchange.context == bad and exchange.text in ("", "Yes")),
        reads="exchange",
    )
    with running(scorer=scorer) as server:
        messages = {"structured_messages": [USER]}
        assert action(server, input_type="request", texts=["x"], **messages) == "BLOCKED"
        assert Exchange(Chat.of([USER]), "") in scorer.texts
        assert Exchange("", "x") in scorer.texts  # every text is scored, too
        assert action(server, texts=["Yes"], **messages) == "BLOCKED"
        assert action(server, texts=["Yes"]) == "NONE"
        assert action(server, texts=["Perhaps"], **messages) == "NONE"
        answered = {"structured_messages": [USER, ASSISTANT]}
        assert action(server, texts=["Yes"], **answered) == "BLOCKED"


@pytest.mark.parametrize("messages", [[], [ASSISTANT], [{"role": "robot", "content": "x"}], ["x"]])
def test_messages_that_are_no_chat_give_no_context(messages: list[Any]) -> None:
    body = {"input_type": "response", "texts": ["Yes"], "structured_messages": messages}
    request = GuardrailRequest.model_validate(body)
    assert Exchange("", "Yes") in request.exchanges(with_prompt=True)
