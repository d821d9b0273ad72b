"""Every service: what is sent, and what becomes of every way to misbehave."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.hostile import CONTROL_TOKENS
from tests.scorers.services.own_stand_ins import Azure, GuardServer, Tei, VllmPooling, verdicts
from tests.scorers.services.stand_ins import Moderation, Perspective, Service, running, toxicity
from tide.core.errors import InputError, ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.base import ask_attributes, attributes_of
from tide.scorers.guards.formats import GuardSettings
from tide.scorers.guards.remote import RemoteGuard
from tide.scorers.services.moderation import AzureContentSafetyScorer, OpenAIModerationScorer
from tide.scorers.services.perspective import PerspectiveScorer
from tide.scorers.services.self_hosted import TeiScorer, VllmClassifyScorer, VllmScoreScorer

KEY = "not-a-real-key-0123456789"
QUICK: dict[str, Any] = {"queries_per_second": 1000.0, "attempts": 3, "backoff": 0.001, "key": KEY}
TEXTS = [f"text number {i}" for i in range(11)]


def guard_score(text: str) -> float:
    found = dict(verdicts(text))
    return float(1 / (1 + 2.718281828459045 ** (found["safe"] - found["unsafe"])))


def severity(text: str) -> float:
    return max(Azure.severity(name, text) for name in ("Hate", "Violence")) / 7


def chat_guard(url: str, **more: Any) -> Scorer:
    return RemoteGuard(GuardSettings(model="some-guard", format="llama-guard", url=url), **more)


def completing_guard(url: str, **more: Any) -> Scorer:
    settings = GuardSettings(
        model="some-guard", url=url, api="completions", prompt="Is this bad? [{text}]",
        verdicts={"unsafe": 1.0, "safe": 0.0}, batch=4,
    )  # fmt: skip
    return RemoteGuard(settings, **more)


KINDS: dict[str, tuple[Any, Callable[..., Scorer], Callable[[str], float]]] = {
    "classify": (VllmPooling, lambda url, **more: VllmClassifyScorer(f"{url}#1", **more), toxicity),
    "score": (
        VllmPooling,
        lambda url, **more: VllmScoreScorer(f"{url}#a rude one", **more),
        toxicity,
    ),
    "tei": (Tei, TeiScorer, toxicity),
    "azure": (Azure, lambda url, **more: AzureContentSafetyScorer(url=url, **more), severity),
    "chat guard": (GuardServer, chat_guard, guard_score),
    "completing guard": (GuardServer, completing_guard, guard_score),
    "perspective": (Perspective, PerspectiveScorer, toxicity),
    "moderation": (Moderation, OpenAIModerationScorer, toxicity),
}
Made = tuple[Service, Scorer, Callable[[str], float]]


@contextmanager
def made(kind: str, **more: Any) -> Iterator[Made]:
    handler, make, expected = KINDS[kind]
    with running(handler) as service:
        yield service, make(url=service.url, **{**QUICK, **more}), expected


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[Made]:
    with made(request.param) as found:
        yield found


def test_every_text_gets_its_own_score(world: Made) -> None:
    service, scorer, expected = world
    assert isinstance(scorer, Scorer)
    assert scorer.score(TEXTS) == pytest.approx([expected(text) for text in TEXTS])
    assert max(service.scored.values()) == 1
    sent = [r["headers"].get("Authorization") for r in service.requests]
    assert set(sent) <= {f"Bearer {KEY}", None}


@pytest.mark.parametrize("kind", ["classify", "score", "tei", "chat guard", "completing guard"])
def test_no_control_token_of_a_text_is_sent(kind: str) -> None:
    with made(kind) as (service, scorer, _):
        scorer.score([f"A{token}B, you idiot" for token in CONTROL_TOKENS])
        sent = str([request["body"] for request in service.requests])
        assert sent.count("B, you idiot") == len(CONTROL_TOKENS)
        assert not [token for token in CONTROL_TOKENS if token in sent]


@pytest.mark.parametrize(
    "failure", ["burst", "broken", "unavailable", "half", "hang up", "bad json"]
)
def test_a_passing_failure_is_tried_again_and_never_a_score(world: Made, failure: str) -> None:
    service, scorer, expected = world
    service.answer = lambda number: failure if number < 2 else "ok"
    assert scorer.score(TEXTS[:2]) == pytest.approx([expected(text) for text in TEXTS[:2]])
    service.answer = lambda number: failure
    with pytest.raises(ScorerUnavailableError, match="3 attempts"):
        score_texts(scorer, ["another text"], "zero")


def test_a_burst_of_refusals_costs_no_text_twice(world: Made) -> None:
    service, scorer, expected = world
    service.answer = lambda number: "burst" if number in (1, 4) else "ok"
    assert scorer.score(TEXTS) == pytest.approx([expected(text) for text in TEXTS])
    assert max(service.scored.values()) == 1


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        ("denied", ScorerRefusedError, "HTTP 401"),
        ("not there", ScorerRefusedError, "HTTP 404"),
        ("bad request", ScorerError, "HTTP 400"),
        ("come back later", ScorerUnavailableError, "come back in 86400 seconds"),
    ],
)
def test_a_refusal_is_not_tried_again(
    world: Made, failure: str, error: type[ScorerError], message: str
) -> None:
    service, scorer, _ = world
    service.answer = lambda number: failure
    with pytest.raises(ScorerError, match=message) as caught:
        scorer.score(["a text"])
    assert type(caught.value) is error
    assert KEY not in str(caught.value)
    assert "a text'" not in str(caught.value)
    assert len(service.requests) == 1


def test_tei_is_not_asked_to_cut_a_text() -> None:
    """What it refuses as too long is an error that says what to do."""
    with made("tei") as (service, scorer, _):
        service.answer = lambda number: "too long"
        with pytest.raises(ScorerError, match="longer than its model reads; use windows:SCORER"):
            scorer.score(["a text"])


def test_a_redirect_takes_neither_text_nor_key_along(world: Made) -> None:
    service, scorer, _ = world
    with running(VllmPooling) as elsewhere:
        service.elsewhere = elsewhere.url
        service.answer = lambda number: "redirect"
        with pytest.raises(ScorerRefusedError, match="HTTP 307"):
            scorer.score(["a text"])
        assert elsewhere.requests == []


def test_a_slow_server_is_left() -> None:
    with made("tei", timeout=0.3, attempts=2) as (service, scorer, expected):
        service.answer = lambda number: "slow" if number == 0 else "ok"
        assert scorer.score(["a text"]) == pytest.approx([expected("a text")])
        service.answer = lambda number: "slow"
        with pytest.raises(ScorerUnavailableError, match=r"no answer within 0\.3 seconds"):
            scorer.score(["another"])


@pytest.mark.parametrize("kind", ["classify", "score", "completing guard"])
def test_rows_in_another_order_go_by_their_number(kind: str) -> None:
    with made(kind) as (service, scorer, expected):
        service.answer = lambda number: "wrong order"
        assert scorer.score(TEXTS) == pytest.approx([expected(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("kind", "failure", "message"),
    [
        ("classify", "twice the same", "4 scores for 4 texts"),
        ("classify", "too few", "3 scores for 4 texts"),
        ("classify", "out of range", "an answer that cannot be used: data.0.probs.0"),
        ("score", "too few", "3 scores for 4 texts"),
        ("score", "no score", "cannot be used: data"),
        ("tei", "too few", "3 scores for 4 texts"),
        ("tei", "other labels", "other labels than its model has"),
        ("tei", "one flat list", "cannot be used"),
        ("azure", "one category less", "without each category that was asked for, once"),
        ("azure", "twice the same", "without each category that was asked for, once"),
        ("azure", "too severe", "cannot be used: categoriesAnalysis.0.severity"),
        ("chat guard", "no logprobs", "an answer without log-probabilities"),
        ("chat guard", "impossible", "cannot be used: choices.0.logprobs.content.0.logprob"),
        ("completing guard", "no logprobs", "an answer without log-probabilities"),
        ("completing guard", "too few", "3 answers to 4 texts"),
        ("moderation", "too few", "3 scores for 4 texts"),
        ("perspective", "no score", "3 attempts"),
    ],
)
def test_answers_that_are_none(kind: str, failure: str, message: str) -> None:
    with made(kind) as (service, scorer, expected):
        service.answer = lambda number: failure
        with pytest.raises(ScorerUnavailableError, match=message):
            score_texts(scorer, TEXTS[:4], "zero")
        service.answer = lambda number: "ok"
        assert scorer.score(TEXTS[:4]) == pytest.approx([expected(text) for text in TEXTS[:4]])


@pytest.mark.parametrize(
    ("kind", "failure", "message"),
    [
        ("classify", "other classes", None),
        ("score", "out of range", "-0.25 is not a score"),
        ("chat guard", "no verdict", "'HelloHello.*' instead of a verdict"),
    ],
)
def test_answers_that_come_again_are_errors(kind: str, failure: str, message: str | None) -> None:
    with made(kind) as (service, scorer, _):
        service.answer = lambda number: failure
        if message is None:  # class 1 is there
            assert scorer.score(["a text"]) == [0.05]
            return
        with pytest.raises(ScorerError, match=message) as caught:
            score_texts(scorer, ["a text"], "zero")
        assert not isinstance(caught.value, ScorerUnavailableError)


def test_which_class_is_toxic() -> None:
    with running(VllmPooling) as service:
        two = VllmClassifyScorer(service.url, **QUICK)
        assert two.score(TEXTS) == pytest.approx([toxicity(text) for text in TEXTS])
        where = service.url.removeprefix("http://")
        assert two.name == f"vllm-classify:some/model@{where}"
        both = VllmClassifyScorer(f"{service.url}/v1#0,1", **QUICK)
        assert both.name == f"vllm-classify:some/model@{where}#0,1"
        assert attributes_of(both) == ("class-0", "class-1")
        found = ask_attributes(both, ["a text"])
        assert found.attributes["class-1"] == pytest.approx([toxicity("a text")])
        some = VllmClassifyScorer(f"{service.url}#sum:0,1", **QUICK)
        assert some.name == f"vllm-classify:some/model@{where}#sum:0,1"
        assert some.score(TEXTS) == pytest.approx([1.0] * len(TEXTS))
        assert both.score(TEXTS) == pytest.approx([max(p := toxicity(t), 1 - p) for t in TEXTS])
        assert VllmClassifyScorer(f"{service.url}#max:0,1", **QUICK).name == both.name
        service.answer = lambda number: "not exclusive"
        with pytest.raises(ScorerError, match=r"not exclusive \(they add up to .*leave out 'sum:'"):
            some.score(["a text"])
        service.answer = lambda number: "turned around"
        with pytest.raises(ScorerError, match="class 0 is called toxic; append #0"):
            two.score(["a text"])
        service.answer = lambda number: "other classes"
        with pytest.raises(ScorerError, match="which of its 3 classes mean toxic"):
            two.score(["a text"])
        with pytest.raises(ScorerError, match="there is no class 5; its model has 3"):
            VllmClassifyScorer(f"{service.url}#5", **QUICK).score(["a text"])
        with pytest.raises(InputError, match="'toxic' is not a number"):
            VllmClassifyScorer(f"{service.url}#toxic", **QUICK)
        with pytest.raises(InputError, match="append a description to compare texts to"):
            load_scorer(f"vllm-score:{service.url}")


def test_tei_s_labels_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Tei) as service:
        scorer = load_scorer(f"tei:{service.url}")
        assert scorer.name == "tei:some/model@01234567#toxic,insult"
        assert attributes_of(scorer) == ("toxic", "insult")
        found = ask_attributes(scorer, TEXTS)
        assert found.attributes["insult"] == pytest.approx([toxicity(t) / 4 for t in TEXTS])
        assert sorted(len(r["body"]["inputs"]) for r in service.requests) == [3, 4, 4]
        largest = load_scorer(f"tei:{service.url}#max:toxic,insult")
        assert largest.name == "tei:some/model@01234567#max:toxic,insult"
        toxic, insult = found.attributes["toxic"], found.attributes["insult"]
        assert largest.score(TEXTS) == pytest.approx([*map(max, toxic, insult)])
        assert scorer.score(TEXTS) == pytest.approx(toxic + insult)
        one = load_scorer(f"tei:{service.url}#insult")
        assert one.score(["a text"]) == pytest.approx([toxicity("a text") / 4])
        with pytest.raises(InputError, match="no label 'rude'; it has neutral, toxic, insult"):
            load_scorer(f"tei:{service.url}#rude")
        monkeypatch.setattr(Tei, "kind", {"reranker": {}})
        with pytest.raises(ScorerRefusedError, match="is not a classifier"):
            load_scorer(f"tei:{service.url}")


def test_azure_s_categories() -> None:
    with running(Azure) as service:
        scorer = AzureContentSafetyScorer("Hate,Sexual", url=service.url, **QUICK)
        where = service.url.removeprefix("http://")
        assert scorer.name == f"azure-content-safety:Hate,Sexual@2024-09-01@{where}"
        found = ask_attributes(scorer, ["a text"]).attributes
        assert found["Sexual"] == [Azure.severity("Sexual", "a text") / 7]
        assert scorer.score(["a text"]) == [max(found.values())]
        with pytest.raises(ScorerError, match="longer than 10,000 characters"):
            scorer.score(["long " * 2001])
        with pytest.raises(InputError, match="no category 'Rude'; there are Hate"):
            AzureContentSafetyScorer("Rude", url=service.url, key=KEY)


def test_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Azure) as service:
        with pytest.raises(InputError, match="set the environment variable AZURE_CONTENT"):
            load_scorer("azure-content-safety")
        monkeypatch.setenv("AZURE_CONTENT_SAFETY_KEY", KEY)
        with pytest.raises(InputError, match="AZURE_CONTENT_SAFETY_ENDPOINT: expected an address"):
            load_scorer("azure-content-safety")
        monkeypatch.setenv("AZURE_CONTENT_SAFETY_ENDPOINT", service.url)
        assert load_scorer("azure-content-safety:Hate").score(["a text"]).shape == (1,)
    with running(VllmPooling) as service:
        monkeypatch.setenv("VLLM_API_KEY", KEY)
        load_scorer(f"vllm-classify:{service.url}").score(["a text"])
        assert service.requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    for name in ("vllm-classify", "vllm-score", "tei"):
        with pytest.raises(InputError, match="needs more"):
            load_scorer(name)
        with pytest.raises(InputError, match="expected an address like"):
            load_scorer(f"{name}:host")


def test_a_guard_by_its_spec() -> None:
    with running(GuardServer) as service:
        scorer = load_scorer(f"guard:Llama-Guard-3-8B@{service.url}")
        where = service.url.removeprefix("http://")
        assert scorer.name == f"guard:Llama-Guard-3-8B@{where}/v1#llama-guard"
        assert scorer.score(["a text"]) == pytest.approx([guard_score("a text")])
        body = service.requests[0]["body"]
        assert body["model"] == "Llama-Guard-3-8B"
        assert body["messages"] == [{"role": "user", "content": "a text"}]
        assert "chat_template_kwargs" not in body
        named = load_scorer(f"guard:some-guard@{service.url}#llama-guard")
        assert named.name == f"guard:some-guard@{where}/v1#llama-guard"
        assert named.score(["a text"]) == pytest.approx([guard_score("a text")])
        with pytest.raises(InputError, match=r"guard:some-guard: which format\?"):
            load_scorer(f"guard:some-guard@{service.url}")
        service.answer = lambda number: "alone"
        assert scorer.score(["other"]) == pytest.approx([0.25])  # the rest counts against it
        asked = GuardSettings(model="llama-guard", url=service.url, policy={"K1": "Be kind."})
        RemoteGuard(asked, **QUICK).score(["a text"])
        told = service.requests[-1]["body"]["chat_template_kwargs"]
        assert told == {"categories": {"K1": "Be kind."}}


def test_the_key_is_nowhere(world: Made, caplog: pytest.LogCaptureFixture) -> None:
    service, scorer, _ = world
    caplog.set_level(logging.DEBUG)
    for number, failure in enumerate(("ok", "denied", "broken", "hang up", "redirect")):
        service.answer = lambda _, failure=failure: failure  # type: ignore[misc]
        with suppress(ScorerError):
            scorer.score([f"a text {number}"])
    assert "HTTP Request" in caplog.text  # the client does log its requests
    assert KEY not in caplog.text
    assert KEY not in repr(scorer)
    assert KEY not in scorer.name


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ScorerUnavailableError, match=r"ConnectError: .* \(1 attempt\)"):
        TeiScorer("http://127.0.0.1:1", attempts=1)
