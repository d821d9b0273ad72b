"""Guards of every family on a server, with good and bad answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.scorers.services.stand_ins import (
    FAMILIES,
    GuardServer,
    Handler,
    Service,
    running,
    share,
)
from tide.core.chat import Chat
from tide.core.errors import ScorerError
from tide.scorers import score_texts
from tide.scorers.base import Exchange
from tide.scorers.guards import FAMILIES as KNOWN
from tide.scorers.guards import RemoteGuard

QUICK: dict[str, Any] = {"queries_per_second": 1000.0, "attempts": 3, "backoff": 0.001}
TEXTS = [f"text number {i}" for i in range(7)]
World = tuple[Service, RemoteGuard, str]


@pytest.fixture(params=FAMILIES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    family = request.param
    handler: type[Handler] = type("Served", (GuardServer,), {"family": family})
    with running(handler) as service:
        yield service, RemoteGuard("some-guard", family, service.url, **QUICK), family


def altered(change: Callable[[dict[str, Any]], None]) -> Any:
    """Change the log-probabilities of each choice."""

    def changed(answer: Any) -> Any:
        for choice in answer["choices"]:
            change(choice["logprobs"])
        return answer

    return lambda number: changed


def test_every_format_has_a_family_here() -> None:
    assert FAMILIES.keys() == KNOWN.keys()


def test_the_verdicts_of_every_family_are_read(world: World) -> None:
    service, scorer, family = world
    assert scorer.score(TEXTS) == pytest.approx([share(text) for text in TEXTS])
    assert set(service.scored.values()) == {1}
    for request in service.requests:
        body = request["body"]
        assert (body["max_tokens"], body["top_logprobs"]) == (KNOWN[family].tokens, 20)
        assert ("guardian_config" in body.get("chat_template_kwargs", {})) == ("3.3" in family)
        if family == "wildguard":
            (message,) = body["messages"]
            assert "Human user:\ntext number " in message["content"]


def test_a_server_gets_the_conversation() -> None:
    handler: type[Handler] = type("Served", (GuardServer,), {"family": "llama-guard"})
    chat = Chat.of([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "An <|im_end|> old question. " + "long " * 4000},
        {"role": "assistant", "content": "An old answer."},
        {"role": "user", "content": "text number 3?"},
    ])  # fmt: skip
    with running(handler) as service:
        scorer = RemoteGuard("some-guard", "llama-guard", service.url, **QUICK)
        scorer.score([Exchange(chat, "An answer. <|im_end|>")])
        # The oldest question is too long.
        assert service.requests[-1]["body"]["messages"] == [
            {"role": "user", "content": "Be brief."},
            {"role": "assistant", "content": "An old answer."},
            {"role": "user", "content": "text number 3?"},
            {"role": "assistant", "content": "An answer. < |im_end|>"},
        ]
        scorer.score([Exchange(chat, "")])  # the guard judges the question
        messages = service.requests[-1]["body"]["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        assert messages[0]["content"].startswith("Be brief.\n\nAn < |im_end|> old question.")


def test_an_answer_without_a_verdict_is_an_error(world: World) -> None:
    service, scorer, family = world
    before = len(FAMILIES[family].before)

    def cut_off(said: dict[str, Any]) -> None:
        for name in said:
            said[name] = said[name][:before]

    def other_words(said: dict[str, Any]) -> None:
        for token in said["content"]:
            token |= {"token": "Hello", "top_logprobs": []}

    for change in (cut_off, other_words):
        service.answer = altered(change)
        with pytest.raises(ScorerError, match=r"instead of a verdict|lacks log-prob") as caught:
            score_texts(scorer, ["a text"])
        assert "\n" not in str(caught.value)


def test_a_verdict_without_alternatives_is_no_safer_than_it_may_be(world: World) -> None:
    service, scorer, _ = world

    def alone(said: dict[str, Any]) -> None:
        for token in said["content"]:
            token["top_logprobs"] = []

    service.answer = altered(alone)
    assert (scorer.score(TEXTS) >= [share(text) - 1e-9 for text in TEXTS]).all()
