"""Guards of every family on a server, in chats and completions, and what becomes of bad answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.scorers.services.own_stand_ins import GuardServer
from tests.scorers.services.stand_ins import Handler, Service, running, toxicity
from tide.core.errors import ScorerError, ScorerUnavailableError
from tide.scorers import score_texts
from tide.scorers.guards.formats import FORMATS, GuardSettings
from tide.scorers.guards.remote import RemoteGuard

QUICK: dict[str, Any] = {"queries_per_second": 1000.0, "attempts": 3, "backoff": 0.001}
TEXTS = [f"text number {i}" for i in range(7)]
OWN = {"bad": 1.0, "so-so": 0.5, "good": 0.0}


@dataclass(frozen=True)
class Family:
    """before: the tokens that it writes before its verdict. after: further ones.

    verdicts: each verdict's token, and its share of the probability of all toxic, or of all other,
    verdicts.
    """

    before: tuple[str, ...]
    toxic: dict[str, float]
    safe: dict[str, float]
    after: tuple[str, ...] = ()


FAMILIES = {
    "llama-guard": Family(("\n\n",), {"unsafe": 1.0}, {"safe": 1.0}, ("\n", "S1")),
    "shieldgemma": Family((), {"Yes": 0.7, " Yes": 0.3}, {"No": 1.0}, (",", " it", " does")),
    "granite-guardian": Family((), {"Yes": 1.0}, {"No": 1.0}),
    "granite-guardian-3.3": Family(
        ("<think>", "\n", "</think>", "\n", "<", "score", ">"),
        {" yes": 1.0}, {" no": 0.9, "no": 0.1}, (" ", "</score>"),
    ),
    "qwen3guard": Family(
        ("Safety", ":"), {" Unsafe": 0.6, " Controversial": 0.4}, {" Safe": 1.0},
        ("\n", "Categories", ":", " None"),
    ),
    "own": Family(("Verdict", ":"), {" bad": 1.0}, {" good": 1.0}, (".",)),
}  # fmt: skip


def share(text: str) -> float:
    """The probability of toxic verdicts among all."""
    return 0.01 + 0.98 * toxicity(text)


class FamilyServer(GuardServer):
    """`family` says in whose words it answers; a tenth of the probability is no verdict."""

    family = "llama-guard"

    def places(self, text: str, *, begun: bool) -> list[list[tuple[str, float]]]:
        """Tokens and log-probabilities, the likeliest first. begun: after the lead."""
        one, p = FAMILIES[self.family], share(text)
        shares = {token: 0.9 * p * part for token, part in one.toxic.items()}
        shares |= {token: 0.9 * (1 - p) * part for token, part in one.safe.items()}
        verdict = sorted(({**shares, " I": 0.1}).items(), key=lambda each: -each[1])
        sure = [[(token, 0.0)] for token in one.before]
        logs = [(token, math.log(part)) for token, part in verdict]
        return [*([] if begun else sure), logs, *([(token, 0.0)] for token in one.after)]

    def content(self, message: dict[str, str]) -> list[dict[str, Any]]:
        self.counted([message["content"]])
        return [
            {
                "token": place[0][0],
                "logprob": place[0][1],
                "top_logprobs": [{"token": t, "logprob": p} for t, p in place],
            }
            for place in self.places(message["content"], begun=False)
        ]

    def choice(self, index: int, text: str) -> dict[str, Any]:
        places = self.places(text, begun=True)
        logprobs = {
            "tokens": [place[0][0] for place in places],
            "token_logprobs": [place[0][1] for place in places],
            "top_logprobs": [dict(place) for place in places],
        }
        return {"index": index, "text": "", "logprobs": logprobs}

    def altered(self, body: dict[str, Any], change: Any) -> None:
        answer = self.scores(body)
        for choice in answer["choices"]:
            change(choice["logprobs"])
        self.send(200, answer)

    def ends_early(self, body: dict[str, Any]) -> None:
        """Cut off before the verdict."""
        before = len(FAMILIES[self.family].before) if "messages" in body else 0

        def cut(said: dict[str, Any]) -> None:
            for name in said:
                said[name] = said[name][:before]

        self.altered(body, cut)

    def no_alternatives(self, body: dict[str, Any]) -> None:
        """The log-probability of what was chosen, and of nothing else."""

        def alone(said: dict[str, Any]) -> None:
            for one in said.get("content", ()):
                one["top_logprobs"] = []
            if "tokens" in said:
                said["top_logprobs"] = [None] * len(said["tokens"])

        self.altered(body, alone)

    def other_words(self, body: dict[str, Any]) -> None:
        def change(said: dict[str, Any]) -> None:
            for one in said.get("content", ()):
                one |= {"token": "Hello", "top_logprobs": []}
            if "tokens" in said:
                said["tokens"] = ["Hello"] * len(said["tokens"])
                said["top_logprobs"] = [{"Hello": -0.01}] * len(said["tokens"])

        self.altered(body, change)

    def not_a_number(self, body: dict[str, Any]) -> None:
        def change(said: dict[str, Any]) -> None:
            for one in said.get("content", ()):
                one["logprob"] = float("nan")
            if "tokens" in said:
                said["token_logprobs"] = [float("nan")] * len(said["tokens"])

        self.altered(body, change)

    def half_the_places(self, body: dict[str, Any]) -> None:
        """Of a completion: fewer log-probabilities than tokens."""

        def change(said: dict[str, Any]) -> None:
            said["top_logprobs"] = said["top_logprobs"][1:]

        self.altered(body, change)


def settings(family: str, api: str, url: str) -> GuardSettings:
    given: dict[str, Any] = {"model": "some-guard", "url": url, "api": api, "batch": 3}
    if family == "own":
        given |= {"verdicts": OWN, "lead": "Verdict:"}
        given |= {"format": "shieldgemma"} if api == "chat" else {}  # for what is not given
    else:
        given["format"] = family
    if api == "completions":
        given["prompt"] = "Is it rude? {policy} [{text}] Answer: "
        given["policy"] = "Be kind."
    return GuardSettings(**given)


@contextmanager
def served(family: str, api: str) -> Iterator[tuple[Service, RemoteGuard]]:
    handler: type[Handler] = type("Served", (FamilyServer,), {"family": family})
    with running(handler) as service:
        yield service, RemoteGuard(settings(family, api, service.url), **QUICK)


@pytest.fixture(params=[(family, api) for family in FAMILIES for api in ("chat", "completions")],
                ids=" ".join)  # fmt: skip
def world(request: pytest.FixtureRequest) -> Iterator[tuple[Service, RemoteGuard]]:
    with served(*request.param) as found:
        yield found


def expected(texts: list[str]) -> Any:
    return pytest.approx([share(text) for text in texts])


World = tuple[Service, RemoteGuard]


def test_every_format_has_a_family_here() -> None:
    assert FAMILIES.keys() - {"own"} == FORMATS.keys()


def test_the_verdicts_of_every_family_are_read(world: World) -> None:
    service, scorer = world
    assert scorer.score(TEXTS) == expected(TEXTS)
    assert set(service.scored.values()) == {1}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_asked_in_a_chat(family: str) -> None:
    with served(family, "chat") as (service, scorer):
        scorer.score(["a text"])
        body = service.requests[0]["body"]
        assert body["messages"] == [{"role": "user", "content": "a text"}]
        arguments = FORMATS[family].arguments if family in FORMATS else {}
        assert body.get("chat_template_kwargs", {}) == arguments
        most = FORMATS["shieldgemma" if family == "own" else family].tokens
        assert (body["max_tokens"], body["top_logprobs"]) == (most, 20)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_asked_for_completions(family: str) -> None:
    with served(family, "completions") as (service, scorer):
        scorer.score(TEXTS)
        lead = "Verdict:" if family == "own" else FORMATS[family].lead
        prompts = [prompt for r in service.requests for prompt in r["body"]["prompt"]]
        asked = {f"Is it rude? Be kind. [{text}] Answer: {lead}" for text in TEXTS}
        assert set(prompts) == asked
        assert sorted(len(r["body"]["prompt"]) for r in service.requests) == [1, 3, 3]


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("no logprobs", "an answer without log-probabilities"),
        ("not a number", "an answer that cannot be used: choices.0.logprobs"),
    ],
)
def test_a_passing_failure_is_tried_again_and_never_a_score(
    api: str, failure: str, message: str
) -> None:
    with served("qwen3guard", api) as (service, scorer):
        service.answer = lambda number: failure if number < 2 else "ok"
        assert scorer.score(TEXTS[:2]) == expected(TEXTS[:2])
        service.answer = lambda number: failure
        with pytest.raises(ScorerUnavailableError, match=message):
            score_texts(scorer, ["another text"], "zero")


@pytest.mark.parametrize("failure", ["ends early", "other words"])
def test_an_answer_without_a_verdict_is_an_error(world: World, failure: str) -> None:
    service, scorer = world
    service.answer = lambda number: failure
    with pytest.raises(ScorerError, match=r"instead of a verdict|without log-prob") as caught:
        score_texts(scorer, ["a text"], "zero")
    assert "\n" not in str(caught.value)


def test_a_verdict_without_alternatives_is_no_safer_than_it_may_be(world: World) -> None:
    service, scorer = world
    service.answer = lambda number: "no alternatives"
    for text in TEXTS:
        (found,) = scorer.score([text])
        assert found >= share(text) - 1e-9


def test_half_a_completion_s_log_probabilities_are_none() -> None:
    with served("qwen3guard", "completions") as (service, scorer):
        service.answer = lambda number: "half the places"
        with pytest.raises(ScorerUnavailableError, match="of other tokens than it wrote"):
            scorer.score(["a text"])
        service.answer = lambda number: "too few"
        with pytest.raises(ScorerUnavailableError, match="2 answers to 3 texts"):
            scorer.score(TEXTS[:3])
        service.answer = lambda number: "wrong order"
        assert scorer.score(TEXTS) == expected(TEXTS)
