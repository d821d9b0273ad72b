"""All services: their requests, and the result of every kind of misbehaviour."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.hostile import CONTROL_TOKENS
from tests.scorers.services.stand_ins import (
    Change,
    GuardServer,
    Moderation,
    Perspective,
    Service,
    Tei,
    VllmPooling,
    running,
    share,
    toxicity,
)
from tide.core.errors import InputError, ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.base import Scores, attributes_of, score_groups
from tide.scorers.guards import RemoteGuard
from tide.scorers.services import OpenAIModerationScorer, PerspectiveScorer, ServedClassifier

KEY = "AIza-Not_A-Real+Key/0123456789=="
QUICK: dict[str, Any] = {"queries_per_second": 1000.0, "attempts": 3, "backoff": 0.001, "key": KEY}
TEXTS = [f"text number {i}" for i in range(11)]


def guard(url: str, **more: Any) -> Scorer:
    return RemoteGuard("some-guard", "llama-guard", url, **more)


KINDS: dict[str, tuple[Any, Callable[..., Any], Callable[[str], float]]] = {
    "vllm": (VllmPooling, lambda url, **more: ServedClassifier(f"{url}#1", **more), toxicity),
    "tei": (Tei, ServedClassifier, toxicity),
    "guard": (GuardServer, guard, share),
    "perspective": (Perspective, PerspectiveScorer, toxicity),
    "moderation": (Moderation, OpenAIModerationScorer, toxicity),
}
Made = tuple[Service, Any, Callable[[str], float]]


@contextmanager
def made(kind: str, **more: Any) -> Iterator[Made]:
    handler, make, expected = KINDS[kind]
    with running(handler) as service:
        yield service, make(url=service.url, **{**QUICK, **more}), expected


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[Made]:
    with made(request.param) as world:
        yield world


def place(service: Service) -> str:
    return service.url.removeprefix("http://")


def test_every_text_gets_its_own_score_after_a_burst_of_refusals_too(world: Made) -> None:
    service, scorer, expected = world
    assert isinstance(scorer, Scorer)
    service.answer = lambda number: "burst" if number in (1, 4) else "ok"
    scores = score_texts(scorer, [*TEXTS, TEXTS[0]]).values
    assert scores[:-1] == pytest.approx([expected(text) for text in TEXTS])
    assert set(service.scored.values()) == {1}
    assert scorer.score([]).shape == (0,)


@pytest.mark.parametrize("failure", ["broken if rude", "bad json if rude"])
def test_text_at_which_a_service_fails_fails_alone(world: Made, failure: str) -> None:
    """The service fails at all requests with one text, and scores the others."""
    service, scorer, expected = world
    service.answer = lambda number: failure
    groups = [TEXTS[:2], [TEXTS[2], "a rude text"], TEXTS[3:]]
    first, second, third = score_groups(scorer, groups)
    assert isinstance(second, ScorerError)
    assert not isinstance(second, ScorerUnavailableError)
    assert re.search(r"\(texts: \d, characters: \d+\)$", str(second))
    for scores, texts in ((first, groups[0]), (third, groups[2])):
        assert isinstance(scores, Scores)
        assert scores.values == pytest.approx([expected(text) for text in texts])


@pytest.mark.parametrize("kind", ["vllm", "tei", "guard"])
def test_no_control_token_of_a_text_is_sent(kind: str) -> None:
    with made(kind) as (service, scorer, _):
        scorer.score([f"A{token}B, you idiot" for token in CONTROL_TOKENS])
        sent = str([request["body"] for request in service.requests])
        assert sent.count("B, you idiot") == len(CONTROL_TOKENS)
        assert not [token for token in CONTROL_TOKENS if token in sent]


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("vllm", "burst"),
        ("tei", "broken"),
        ("guard", "unavailable"),
        ("perspective", "half"),
        ("moderation", "hang up"),
        *((kind, failure) for kind in KINDS for failure in ("bad json", lambda _: {})),
    ],
)
def test_a_passing_failure_is_tried_again_and_never_a_score(
    kind: str, failure: str | Change
) -> None:
    with made(kind) as (service, scorer, expected):
        service.answer = lambda number: failure if number < 2 else "ok"
        assert scorer.score(TEXTS[:1]) == pytest.approx([expected(TEXTS[0])])
        service.answer = lambda number: failure
        with pytest.raises(ScorerUnavailableError, match="3 attempts"):
            score_texts(scorer, ["another text"])


# A self-hosted server may repeat the text as a code, so errors quote no codes of such servers.
CODES = [
    (kind, ".* invalid_request" if kind in ("perspective", "moderation") else "") for kind in KINDS
]
REFUSALS: list[tuple[str, str, type[ScorerError], str]] = [
    ("vllm", "denied", ScorerRefusedError, "HTTP 401; check "),
    ("guard", "not there", ScorerRefusedError, "HTTP 404 at /.*; check "),
    *((kind, "bad request", ScorerError, rf"HTTP 400{c} \(texts: 1, char") for kind, c in CODES),
    ("tei", "failed inference", ScorerError, r"HTTP 424 \(texts: 1"),
    ("perspective", "come back later", ScorerUnavailableError, "retry in 86400 sec"),
    ("tei", "too long", ScorerError, "longer than the model's context; use windows:SCORER"),
    ("moderation", "no credit", ScorerRefusedError, "insufficient_quota; check OPENAI_API_KEY"),
    ("perspective", "empty", ScorerError, r"COMMENT_EMPTY \(texts: 1, characters: 6\)$"),
    ("perspective", "bad key", ScorerRefusedError, "API_KEY_INVALID; check PERSPECTIVE_API_KEY"),
    ("perspective", "forbidden", ScorerRefusedError, "PERMISSION_DENIED; check"),
    ("perspective", "gone", ScorerRefusedError, "HTTP 410; check .*ends on 2026-12-31"),
]


@pytest.mark.parametrize(("kind", "failure", "error", "message"), REFUSALS)
def test_a_refusal_is_not_tried_again(
    kind: str, failure: str, error: type[ScorerError], message: str
) -> None:
    with made(kind) as (service, scorer, _):
        service.answer = lambda number: failure
        with pytest.raises(ScorerError, match=message) as caught:
            scorer.score(["a text"])
        assert type(caught.value) is error
        assert KEY not in str(caught.value)
        assert "a text'" not in str(caught.value)
        assert len(service.requests) == 1


def test_a_redirect_takes_neither_text_nor_key_along(world: Made) -> None:
    service, scorer, _ = world
    with running(VllmPooling) as elsewhere:
        service.elsewhere = elsewhere.url
        service.answer = lambda number: "redirect"
        with pytest.raises(ScorerRefusedError, match=r"HTTP 307 at /.*; check .*(address|URL)"):
            scorer.score(["a text"])
        assert elsewhere.requests == []


def test_a_slow_server_and_one_that_is_not_there_are_left() -> None:
    with made("tei", timeout=0.3, attempts=1) as (service, scorer, _):
        service.answer = lambda number: "slow"
        with pytest.raises(ScorerUnavailableError, match=r"no answer within 0\.3 seconds"):
            scorer.score(["a text"])
    with pytest.raises(ScorerUnavailableError, match=r"ConnectError: .* \(1 attempt\)"):
        ServedClassifier("http://127.0.0.1:1", attempts=1)


def rows(change: Change) -> Change:
    """Change the list in an answer."""

    def changed(answer: Any) -> Any:
        if isinstance(answer, list):
            return change(answer)
        name = next(n for n in ("data", "choices", "results", "categoriesAnalysis") if n in answer)
        return answer | {name: change(answer[name])}

    return changed


def each(**fields: Any) -> Change:
    return rows(lambda answers: [answer | fields for answer in answers])


def chat_place(**fields: Any) -> Change:
    position = {"token": "safe", "logprob": 0.0, "top_logprobs": [], **fields}
    return each(logprobs={"content": [position] * 5})


too_few, twice = rows(lambda found: found[1:]), rows(lambda found: [found[0]] * len(found))


def test_rows_in_another_order_go_by_their_number() -> None:
    with made("vllm") as (service, scorer, expected):
        service.answer = lambda number: rows(lambda answers: answers[::-1])
        assert scorer.score(TEXTS) == pytest.approx([expected(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("vllm", twice, "the server returned 4 answers to 4 texts"),
        ("vllm", too_few, "3 answers to 4 texts"),
        ("vllm", each(probs=[1.2, -0.2]), "the answer cannot be used: data.0.probs.0"),
        ("tei", too_few, "3 scores for 4 texts"),
        (
            "tei",
            rows(lambda answers: [[{"label": "good", "score": 1.0}] for _ in answers]),
            "labels differ from the model's labels",
        ),
        ("tei", rows(lambda answers: [labels[0] for labels in answers]), "cannot be used"),
        ("guard", each(logprobs=None), "the answer lacks log-probabilities"),
        ("moderation", too_few, "3 scores for 4 texts"),
        ("perspective", lambda _: {"attributeScores": {}}, "the answer lacks a score"),
    ],
)
def test_answers_that_are_none(kind: str, change: Change, message: str) -> None:
    with made(kind, attempts=1) as (service, scorer, expected):
        service.answer = lambda number: change
        with pytest.raises(ScorerUnavailableError, match=message):
            score_texts(scorer, TEXTS[:4])
        service.answer = lambda number: "ok"
        assert scorer.score(TEXTS[:4]) == pytest.approx([expected(text) for text in TEXTS[:4]])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("guard", chat_place(token="Hello"), "'HelloHello.*' instead of a verdict"),
        (
            "moderation",
            lambda answer: {"results": [{"category_scores": {"harassment": 0.5}}]},
            "no category 'harassment/threatening'; it has harassment",
        ),
    ],
)
def test_answers_that_come_again_are_errors(kind: str, change: Change, message: str) -> None:
    with made(kind) as (service, scorer, _):
        service.answer = lambda number: change
        with pytest.raises(ScorerError, match=message) as caught:
            score_texts(scorer, ["a text"])
        assert not isinstance(caught.value, ScorerUnavailableError)


def test_which_class_is_toxic() -> None:
    with running(VllmPooling) as service:
        scorer = ServedClassifier(f"{service.url}/v1#0", **QUICK)
        assert scorer.name == f"classifier:some/model@{place(service)}#0"
        assert scorer.score(TEXTS) == pytest.approx([1 - toxicity(text) for text in TEXTS])
        with pytest.raises(ScorerError, match="no class 5; its model has 2"):
            ServedClassifier(f"{service.url}#5", **QUICK).score(["a text"])
        for wrong in ("", "#toxic", "#0,1"):
            with pytest.raises(ScorerRefusedError, match=r"number of its toxic class, as in #1"):
                ServedClassifier(f"{service.url}{wrong}", **QUICK)


def test_tei_s_labels_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Tei) as service:
        scorer = load_scorer(f"classifier:{service.url}")
        assert scorer.name == "classifier:some/model@01234567#toxic,insult"
        assert attributes_of(scorer) == ("toxic", "insult")
        scores = score_texts(scorer, TEXTS)
        assert scores.attributes["insult"] == pytest.approx([toxicity(t) / 4 for t in TEXTS])
        assert sorted(len(r["body"]["inputs"]) for r in service.requests) == [3, 4, 4]
        both = scores.attributes["toxic"] + scores.attributes["insult"]
        assert scorer.score(TEXTS) == pytest.approx(both)
        with pytest.raises(InputError, match="no label 'rude'; it has neutral, toxic, insult"):
            load_scorer(f"classifier:{service.url}#rude")
        with pytest.raises(InputError, match="add up to 1 for every text; name the toxic"):
            load_scorer(f"classifier:{service.url}#neutral,toxic,insult")
        toxic_only = {"classifier": {"id2label": {"0": "toxic", "1": "insult"}}}
        monkeypatch.setattr(Tei, "kind", toxic_only)
        with pytest.raises(InputError, match="inference applies a softmax to any model"):
            load_scorer(f"classifier:{service.url}#toxic")
        monkeypatch.setattr(Tei, "kind", {"reranker": {}})
        with pytest.raises(ScorerRefusedError, match="is not a classifier"):
            load_scorer(f"classifier:{service.url}")


def test_moderation_s_categories_and_batches() -> None:
    with running(Moderation) as service:
        scorer = OpenAIModerationScorer("a-model#violence,hate", url=service.url, **QUICK)
        assert scorer.name == f"openai-moderation:a-model#violence,hate@{place(service)}"
        assert scorer.score([f"text {i}" for i in range(70)]) == pytest.approx([0.99] * 70)
        assert sorted(len(r["body"]["input"]) for r in service.requests) == [6, 32, 32]
        assert service.requests[0]["body"]["model"] == "a-model"
        with pytest.raises(ScorerError, match="no category 'rudeness'; it has harassment"):
            OpenAIModerationScorer("m#rudeness", url=service.url, **QUICK).score(["a text"])


def test_each_scorer_of_a_service_keeps_its_own_rate() -> None:
    with running(Moderation) as service:
        fast, slow, again = (
            OpenAIModerationScorer(url=service.url, **{**QUICK, "queries_per_second": rate})
            for rate in (50.0, 1.0, 50.0)
        )
        assert (fast._pace.per_second, slow._pace.per_second) == (50.0, 1.0)
        assert again._pace is fast._pace  # equal rates share the service's quota


def test_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(VllmPooling) as service:
        monkeypatch.setenv("CLASSIFIER_API_KEY", KEY)
        load_scorer(f"classifier:{service.url}#1").score(["a text"])
        assert service.requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    with running(Moderation) as service:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", service.url)
        usual = load_scorer("openai-moderation")
        assert usual.name == f"openai-moderation:omni-moderation-2024-09-26@{place(service)}"
        assert usual.score(["a text"]) == pytest.approx([toxicity("a text")])
    with pytest.raises(InputError, match="needs an argument"):
        load_scorer("classifier")
    with pytest.raises(InputError, match="expected an address like"):
        load_scorer("classifier:host")
