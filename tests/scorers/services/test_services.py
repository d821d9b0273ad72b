"""All services: their requests, and the result of every kind of misbehaviour."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.command import tide
from tests.core.test_http import sends, serving
from tests.fakes import attribute
from tests.generated import examples
from tests.hostile import CONTROL_TOKENS, answers, network, said
from tests.hostile import KEY as EXPOSED_KEY
from tests.scorers.services.stand_ins import (
    KEY,
    Change,
    GuardServer,
    Moderation,
    Refusal,
    Service,
    Tei,
    VllmPooling,
    quick,
    running,
    share,
    toxicity,
)
from tide.core.errors import InputError, ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.scorers import load_scorer
from tide.scorers.base import Scorer, adapted, score_groups, score_texts
from tide.scorers.services import CATEGORIES

TEXTS = [f"text number {i}" for i in range(11)]
# The service, the scorer's spec, and the score of a text.
KINDS: dict[str, tuple[type[Service], str, Callable[[str], float]]] = {
    "vllm": (VllmPooling, f"classifier:{Service.url}#1", toxicity),
    "tei": (Tei, f"classifier:{Service.url}", toxicity),
    "guard": (GuardServer, f"guard:some-guard@{Service.url}#llama-guard", share),
    "moderation": (Moderation, "openai-moderation", toxicity),
}
BURST = (429, "rate_limit_exceeded")
Made = tuple[Service, Any, Callable[[str], float]]


@contextmanager
def made(kind: str, **settings: Any) -> Iterator[Made]:
    service_class, spec, expected = KINDS[kind]
    with running(service_class) as service:
        scorer = load_scorer(spec)
        vars(scorer).update(settings)
        yield service, scorer, expected


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[Made]:
    with made(request.param) as world:
        yield world


def test_every_text_gets_its_own_score_after_a_burst_of_refusals_too(world: Made) -> None:
    service, scorer, expected = world
    assert isinstance(scorer, Scorer)
    service.answer = lambda number: BURST if number in (1, 4) else "ok"
    scores = score_texts(scorer, [*TEXTS, TEXTS[0]]).values
    assert scores[:-1] == pytest.approx([expected(text) for text in TEXTS])
    assert set(service.scored.values()) == {1}
    assert scorer.score([]).shape == (0,)


@pytest.mark.parametrize("failure", [(500,), "bad json"])
def test_text_at_which_a_service_fails_fails_alone(world: Made, failure: str | Refusal) -> None:
    """The service fails at all requests with one text, and scores the others."""
    service, scorer, expected = world
    service.answer, service.fails_at = lambda number: failure, "rude"
    groups = [TEXTS[:2], [TEXTS[2], "a rude text"], TEXTS[3:]]
    first, second, third = score_groups(scorer, groups)
    assert isinstance(second, ScorerError)
    assert not isinstance(second, ScorerUnavailableError)
    assert re.search(r"\(texts: \d, characters: \d+\)$", str(second))
    for scores, texts in ((first, groups[0]), (third, groups[2])):
        assert not isinstance(scores, ScorerError)
        values = [score.value for score in scores]
        assert values == pytest.approx([expected(text) for text in texts])


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
        ("vllm", BURST),
        ("tei", (500,)),
        ("guard", (503,)),
        ("moderation", "hang up"),
        *((kind, failure) for kind in KINDS for failure in ("bad json", lambda _: {})),
    ],
)
def test_a_passing_failure_is_tried_again_and_never_a_score(
    kind: str, failure: str | Refusal | Change
) -> None:
    with made(kind) as (service, scorer, expected):
        service.answer = lambda number: failure if number < 2 else "ok"
        assert scorer.score(TEXTS[:1]) == pytest.approx([expected(TEXTS[0])])
        service.answer = lambda number: failure
        with pytest.raises(ScorerUnavailableError, match="3 attempts"):
            score_texts(scorer, ["another text"])


# A self-hosted server may repeat the text as a code, so errors quote no codes of such servers.
CODES = [(kind, " invalid_request" if kind == "moderation" else "") for kind in KINDS]
INVALID = (400, "invalid_request")
REFUSALS: list[tuple[str, str | Refusal, type[ScorerError], str]] = [
    ("vllm", (401,), ScorerRefusedError, "HTTP 401; check "),
    ("vllm", "redirect", ScorerRefusedError, "HTTP 307 at /.*; check "),
    ("moderation", "redirect", ScorerRefusedError, "HTTP 307 at /.*; check .*the address"),
    ("guard", (404,), ScorerRefusedError, "HTTP 404 at /.*; check "),
    *((kind, INVALID, ScorerError, rf"HTTP 400{c} \(texts: 1, char") for kind, c in CODES),
    ("tei", (424,), ScorerError, r"HTTP 424 \(texts: 1"),
    ("moderation", (*BURST, 86_400), ScorerUnavailableError, "retry in 86400 sec"),
    ("tei", (413,), ScorerError, "longer than the model's context; use windows:SCORER"),
    ("moderation", (429, "insufficient_quota"), ScorerRefusedError, "_quota; check OPENAI_API_KEY"),
    ("moderation", (400, "empty_text"), ScorerError, "empty_text .*characters: 6"),
    ("moderation", (403, "wrong_key"), ScorerRefusedError, "HTTP 403 wrong_key; check OPENAI_API"),
    ("moderation", (410,), ScorerRefusedError, "HTTP 410; check .*the model's name"),
]


@pytest.mark.parametrize(("kind", "failure", "error", "message"), REFUSALS)
def test_a_refusal_is_not_tried_again(
    kind: str, failure: str | Refusal, error: type[ScorerError], message: str
) -> None:
    with made(kind) as (service, scorer, _):
        service.answer = lambda number: failure
        with pytest.raises(ScorerError, match=message) as caught:
            scorer.score(["a text"])
        assert type(caught.value) is error
        assert KEY not in str(caught.value)
        assert "a text'" not in str(caught.value)
        assert len(service.requests) == 1


def test_a_slow_server_and_one_that_is_not_there_are_left() -> None:
    with made("guard", timeout=0.1) as (service, scorer, _):
        service.answer = lambda number: "slow"
        with pytest.raises(ScorerUnavailableError, match=r"no answer within 0\.1 seconds"):
            scorer.score(["a text"])
    with (
        quick("http://127.0.0.1:1"),
        pytest.raises(ScorerUnavailableError, match=r"ConnectError: .* \(3 attempts\)"),
    ):
        load_scorer("openai-moderation").score(["a text"])


def test_rows_in_another_order_go_by_their_number() -> None:
    with made("vllm") as (service, scorer, expected):
        service.answer = lambda number: lambda answer: {"data": answer["data"][::-1]}
        assert scorer.score(TEXTS) == pytest.approx([expected(text) for text in TEXTS])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("vllm", lambda answer: {"data": answer["data"][:1] * 4}, "returned 4 answers to 4 texts"),
        ("vllm", lambda answer: {"data": answer["data"][1:]}, "3 answers to 4 texts"),
        ("vllm", lambda _: {"data": [{"index": 0, "probs": [1.2, -0.2]}]}, r"data\.0\.probs\.0"),
        ("tei", lambda rows: rows[1:], "3 scores for 4 texts"),
        ("tei", lambda rows: [[{"label": "good", "score": 1.0}] for _ in rows], "labels differ"),
        ("tei", lambda rows: [labels[0] for labels in rows], "cannot be used"),
        ("guard", lambda _: {"choices": [{"logprobs": None}]}, "the answer lacks log-probabil"),
        ("moderation", lambda answer: {"results": answer["results"][1:]}, "3 scores for 4 texts"),
    ],
)
def test_answers_that_are_none(kind: str, change: Change, message: str) -> None:
    with made(kind, attempts=1) as (service, scorer, expected):
        service.answer = lambda number: change
        with pytest.raises(ScorerUnavailableError, match=message):
            score_texts(scorer, TEXTS[:4])
        service.answer = lambda number: "ok"
        assert scorer.score(TEXTS[:4]) == pytest.approx([expected(text) for text in TEXTS[:4]])


def test_which_class_is_toxic() -> None:
    with running(VllmPooling) as service:
        scorer = load_scorer(f"classifier:{service.url}/v1#0")
        assert scorer.name == "classifier:some/model@service.test#0"
        assert scorer.score(TEXTS) == pytest.approx([1 - toxicity(text) for text in TEXTS])
        assert service.requests[0]["headers"]["authorization"] == f"Bearer {KEY}"
        with pytest.raises(ScorerError, match="no class 5; its model has 2"):
            load_scorer(f"classifier:{service.url}#5").score(["a text"])
        for wrong in ("", "#toxic", "#0,1"):
            with pytest.raises(ScorerRefusedError, match=r"number of its toxic class, as in #1"):
                load_scorer(f"classifier:{service.url}{wrong}")
    with pytest.raises(InputError, match="expected an address like"):
        load_scorer("classifier:host")


def test_tei_s_labels_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Tei) as service:
        scorer = load_scorer(f"classifier:{service.url}")
        assert scorer.name == "classifier:some/model@01234567#toxic,insult"
        assert adapted(scorer).attributes == ("toxic", "insult")
        scores = score_texts(scorer, TEXTS)
        insult = np.array(attribute(scores, "insult"))
        assert insult == pytest.approx([toxicity(text) / 4 for text in TEXTS])
        assert sorted(len(r["body"]["inputs"]) for r in service.requests) == [3, 4, 4]
        assert scores.values == pytest.approx(insult + attribute(scores, "toxic"))
        info = Tei.about["/info"]
        toxic_only = {"classifier": {"id2label": {"0": "toxic", "1": "insult"}}}
        monkeypatch.setitem(info, "model_type", toxic_only)
        with pytest.raises(InputError, match=r"add up to 1 .* load the model with hf:"):
            load_scorer(f"classifier:{service.url}#toxic")
        monkeypatch.setitem(info, "model_type", {"reranker": {}})
        with pytest.raises(ScorerRefusedError, match="is not a classifier"):
            load_scorer(f"classifier:{service.url}")


def test_moderation_s_categories_and_batches() -> None:
    with running(Moderation) as service:
        usual = load_scorer("openai-moderation")
        assert usual.name == "openai-moderation:omni-moderation-2024-09-26@service.test"
        scorer = load_scorer("openai-moderation:a-model")
        assert scorer.name == "openai-moderation:a-model@service.test"
        scorer.score([f"text {i}" for i in range(70)])
        assert sorted(len(r["body"]["input"]) for r in service.requests) == [6, 32, 32]
        assert service.requests[0]["body"]["model"] == "a-model"
        service.answer = lambda number: lambda _: {"results": [{"category_scores": {"sad": 0.5}}]}
        with pytest.raises(ScorerError, match="no category 'harassment'; it has sad") as caught:
            scorer.score(["a text"])
        assert not isinstance(caught.value, ScorerUnavailableError)


def test_scorers_of_a_service_share_the_rate_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(Moderation) as service:
        monkeypatch.setenv("OPENAI_MODERATION_QPS", "20")
        started = time.monotonic()
        for model in ("a", "a", "b", "b"):
            load_scorer(f"openai-moderation:{model}").score(TEXTS[:2])
    assert len(service.requests) == 4
    assert time.monotonic() - started >= 3 / 20


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("API_KEY", "", "no key; set the environment variable OPENAI_API_KEY"),
        ("MODERATION_QPS", "fast", "OPENAI_MODERATION_QPS: Input should be a valid number"),
        ("BASE_URL", "host", "OPENAI_BASE_URL: expected an address like"),
    ],
)
def test_bad_variables_are_named(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv(f"OPENAI_{name}", value)
    with pytest.raises(InputError, match=message):
        load_scorer("openai-moderation")


def test_key_is_in_no_output(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither printed nor written nor logged, with the logs of httpx and of the connection on."""
    body = json.dumps({"error": {"message": KEY, "code": "invalid_api_key"}})
    answer = f"HTTP/1.1 400 Answer\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with serving(sends(answer.encode())) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        output = tmp_path / "scores.jsonl"
        assert tide("score", "one text", "-s", "openai-moderation", "-o", output) == 1
    assert len(requests) == 1
    printed = capsys.readouterr()
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "HTTP" in caplog.text
    for shown in (KEY, quote(KEY, safe="")):
        assert shown not in caplog.text + printed.out + printed.err + written


def test_service_is_asked_by_one_client_for_life() -> None:
    with made("moderation") as (service, scorer, _):
        for number in range(20):
            scorer.score([f"text {number}"])
        assert len(service.requests) == 20
        assert len(service.transports) == 1
        thread = scorer.portal._thread
        assert thread in threading.enumerate()
        scorer.close()
        assert thread not in threading.enumerate()
        with pytest.raises(ScorerError, match="the scorer is closed"):
            scorer.score(["a text"])


def is_score(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def read_moderation(answer: Any) -> Any:
    rows = [result["category_scores"] for result in answer["results"]]
    assert all(is_score(row[name]) for row in rows for name in CATEGORIES)
    return [max(row[name] for name in CATEGORIES) for row in rows]


@pytest.mark.attack
@given(make=answers())
@settings(examples(15, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_service_gives_what_its_answer_says_or_one_line(
    make: Callable[[Any], httpx.Response], caplog: pytest.LogCaptureFixture
) -> None:
    meant: list[Any] = []
    service = Moderation()

    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url).startswith(service.url)
        response = make(service.right_answer(request))
        meant.append(said(response))
        return response

    caplog.set_level(logging.DEBUG, "httpx")
    with quick(service.url, EXPOSED_KEY), network(answer):
        scorer = load_scorer("openai-moderation")
        vars(scorer)["attempts"] = 1
        try:
            scores = scorer.score(TEXTS[:2]).tolist()
        except ScorerError as error:
            refusal = str(error)
            assert len(refusal.splitlines()) == 1
            assert len(refusal) < 2000
            assert EXPOSED_KEY not in refusal
        else:
            assert len(meant) == 1
            assert all(map(is_score, scores))
            assert scores == read_moderation(meant[0])
    assert EXPOSED_KEY not in caplog.text
    caplog.clear()
