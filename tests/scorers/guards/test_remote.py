"""Guards of every family on a server, in chats and completions, with good and bad answers."""

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
from tide.core.errors import ScorerError
from tide.scorers import score_texts
from tide.scorers.guards.formats import FORMATS, GuardSettings
from tide.scorers.guards.remote import RemoteGuard

QUICK: dict[str, Any] = {"queries_per_second": 1000.0, "attempts": 3, "backoff": 0.001}
TEXTS = [f"text number {i}" for i in range(7)]
OWN = {"bad": 1.0, "so-so": 0.5, "good": 0.0}
World = tuple[Service, RemoteGuard, str, str]


def settings(family: str, api: str, url: str) -> GuardSettings:
    given: dict[str, Any] = {"model": "some-guard", "url": url, "api": api, "batch": 3}
    if family == "own":
        given |= {"verdicts": OWN, "lead": "Verdict:"}
        given |= {"format": "shieldgemma"} if api == "chat" else {}  # for the other fields
    else:
        given["format"] = family
    if api == "completions":
        given["prompt"] = "Is it rude? {policy} [{text}] Answer: "
        given["policy"] = "Be kind."
    return GuardSettings(**given)


@pytest.fixture(params=[(family, api) for family in FAMILIES for api in ("chat", "completions")],
                ids=" ".join)  # fmt: skip
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    family, api = request.param
    handler: type[Handler] = type("Served", (GuardServer,), {"family": family})
    with running(handler) as service:
        yield service, RemoteGuard(settings(family, api, service.url), **QUICK), family, api


def altered(change: Callable[[dict[str, Any]], None]) -> Any:
    """Change the log-probabilities of each choice."""

    def changed(answer: Any) -> Any:
        for choice in answer["choices"]:
            change(choice["logprobs"])
        return answer

    return lambda number: changed


def test_every_format_has_a_family_here() -> None:
    assert FAMILIES.keys() - {"own"} == FORMATS.keys()


def test_every_family_is_asked_in_its_way_and_its_verdicts_are_read(world: World) -> None:
    service, scorer, family, api = world
    assert scorer.score(TEXTS) == pytest.approx([share(text) for text in TEXTS])
    assert set(service.scored.values()) == {1}
    bodies = [request["body"] for request in service.requests]
    if api == "chat":
        assert {body["messages"][0]["content"] for body in bodies} == set(TEXTS)
        arguments = FORMATS[family].arguments if family in FORMATS else {}
        most = FORMATS["shieldgemma" if family == "own" else family].tokens
        for body in bodies:
            assert body.get("chat_template_kwargs", {}) == arguments
            assert (body["max_tokens"], body["top_logprobs"]) == (most, 20)
    else:
        lead = "Verdict:" if family == "own" else FORMATS[family].lead
        asked = {f"Is it rude? Be kind. [{text}] Answer: {lead}" for text in TEXTS}
        assert {prompt for body in bodies for prompt in body["prompt"]} == asked
        assert sorted(len(body["prompt"]) for body in bodies) == [1, 3, 3]


def test_an_answer_without_a_verdict_is_an_error(world: World) -> None:
    service, scorer, family, api = world
    before = len(FAMILIES[family].before) if api == "chat" else 0

    def cut_off(said: dict[str, Any]) -> None:
        for name in said:
            said[name] = said[name][:before]

    def other_words(said: dict[str, Any]) -> None:
        for one in said.get("content", ()):
            one |= {"token": "Hello", "top_logprobs": []}
        if "tokens" in said:
            said["tokens"] = ["Hello"] * len(said["tokens"])
            said["top_logprobs"] = [{"Hello": -0.01}] * len(said["tokens"])

    for change in (cut_off, other_words):
        service.answer = altered(change)
        with pytest.raises(ScorerError, match=r"instead of a verdict|lacks log-prob") as caught:
            score_texts(scorer, ["a text"], "zero")
        assert "\n" not in str(caught.value)


def test_a_verdict_without_alternatives_is_no_safer_than_it_may_be(world: World) -> None:
    service, scorer, _, _ = world

    def alone(said: dict[str, Any]) -> None:
        for one in said.get("content", ()):
            one["top_logprobs"] = []
        if "tokens" in said:
            said["top_logprobs"] = [None] * len(said["tokens"])

    service.answer = altered(alone)
    assert (scorer.score(TEXTS) >= [share(text) - 1e-9 for text in TEXTS]).all()
