"""The scoring APIs, as clients of Perspective and OpenAI see them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from tests.server.processes import TIDE, serving
from tests.server.running import PATIENCE, Running, running, wait_until
from tests.worlds import ReadingScorer
from tide.core.errors import InputError, ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.engines import load_engine
from tide.scorers import CallableScorer, Exchange, load_scorer
from tide.scorers.base import Attributed, screen_of
from tide.scorers.services import OpenAIModerationScorer, PerspectiveScorer
from tide.scorers.wrappers import ConfirmScorer, MaxScorer
from tide.server.limits import Limits
from tide.server.scoring import perspective_name
from tide.server.telemetry import MeasuredScorer, Metrics

KEY = "the-key-of-these-tests"
TEXTS = ["toxicity 0.75", "toxicity 0.25", "a plain text"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(keys=(KEY,), limits=Limits(max_texts=8)) as found:
        found.http.headers["x-api-key"] = KEY
        yield found


def test_a_client_of_perspective_needs_another_address_alone(server: Running) -> None:
    scorer = PerspectiveScorer(key=KEY, url=server.url, queries_per_second=100)
    assert scorer.score(TEXTS).tolist() == [0.75, 0.25, 0.0]
    with pytest.raises(ScorerError, match="COMMENT_EMPTY"):
        scorer.score([" "])
    with pytest.raises(ScorerError, match="UNKNOWN_ATTRIBUTE"):
        PerspectiveScorer("INSULT", key=KEY, url=server.url, queries_per_second=99).score(["text"])
    with pytest.raises(ScorerRefusedError):
        PerspectiveScorer(key="another-key", url=server.url, queries_per_second=99).score(["text"])


def analyze(server: Running, **more: Any) -> Any:
    body = {"comment": {"text": TEXTS[0]}, "requestedAttributes": {"TOXICITY": {}}, **more}
    return server.post("/v1alpha1/comments:analyze", body)


def test_perspective_s_answer(server: Running) -> None:
    score = {"value": 0.75, "type": "PROBABILITY"}
    answer = analyze(server, doNotStore=True, languages=["en"], clientToken="mine").json()
    assert answer == {
        "attributeScores": {
            "TOXICITY": {
                "spanScores": [{"begin": 0, "end": 13, "score": score}],
                "summaryScore": score,
            }
        },
        "languages": ["en"],
        "clientToken": "mine",
    }
    some = analyze(server, requestedAttributes={"TOXICITY": {}, "INSULT": {}}).json()
    assert list(some["attributeScores"]) == ["TOXICITY"]
    assert "detectedLanguages" not in some
    assert "TOXICITY" in analyze(server, comment={"text": "ok"}).json()["attributeScores"]
    below = {"TOXICITY": {"scoreThreshold": 0.8}}
    assert analyze(server, requestedAttributes=below).json()["attributeScores"] == {}
    for wrong in (
        {"requestedAttributes": {}},
        {"requestedAttributes": {"INSULT": {}, "THREAT": {}}},
        *(
            {"requestedAttributes": {"TOXICITY": {"scoreThreshold": number}}}
            for number in ("x", math.nan, math.inf)
        ),
        {"comment": {"text": "x " * 20_000}},
        {"comment": {"text": " \n"}},
        {"comment": None},
    ):
        answer = analyze(server, **wrong)
        assert answer.status_code == answer.json()["error"]["code"] == 400
        assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"


class Attributes(ReadingScorer):
    """`insult` is half of the toxicity, `threat` a tenth."""

    attributes = ("insult", "threat", "toxic")

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        scores = self.score(texts)
        found = {"insult": scores / 2, "threat": scores / 10, "toxic": scores}
        return Attributed(scores, found)


def test_perspective_s_other_attributes_are_those_that_the_scorer_has() -> None:
    with running(scorer=Attributes()) as server:
        ask = partial(PerspectiveScorer, key=KEY, url=server.url, queries_per_second=100)
        assert ask("INSULT").score(TEXTS).tolist() == [0.375, 0.125, 0.0]
        found = ask("TOXICITY,THREAT").score_attributes(TEXTS)
        assert found.values.tolist() == [0.75, 0.25, 0.0]
        assert found.attributes["THREAT"] == pytest.approx([0.075, 0.025, 0.0])
        wanted = {"INSULT": {"scoreThreshold": 0.5}, "TOXICITY": {"scoreThreshold": 0.5}}
        assert list(analyze(server, requestedAttributes=wanted).json()["attributeScores"]) == [
            "TOXICITY"
        ]
        refused = analyze(server, requestedAttributes={"PROFANITY": {}})
        assert "known: TOXICITY, INSULT, THREAT" in refused.text
        assert server.metric("tide_scorer_texts_total") == 7


GERMAN = "Das Wetter ist heute sch\u00f6n und die Leute sind nicht auf der Stra\u00dfe"


@pytest.fixture(scope="module")
def english() -> Iterator[Running]:
    with running(scorer=load_scorer("windows:50:max:lexicon,pocket")) as found:
        yield found


@pytest.mark.parametrize(
    ("text", "languages", "unread"),
    [
        ("a plain text", ["fr", "en"], ["fr"]),
        (GERMAN, [], ["de"]),
        ("a plain text", ["en-GB"], []),
        (GERMAN, ["en"], []),  # the client's statement counts
    ],
)
def test_a_language_that_the_scorer_does_not_read(
    english: Running, text: str, languages: list[str], unread: list[str]
) -> None:
    answer = analyze(english, comment={"text": text}, languages=languages)
    if not unread:
        assert answer.status_code == 200
        return
    error = answer.json()["error"]
    assert (answer.status_code, error["status"]) == (400, "INVALID_ARGUMENT")
    said = f"Attribute TOXICITY does not support request languages: {', '.join(unread)}"
    assert error["message"] == said
    (detail,) = error["details"]
    assert detail["@type"].endswith("google.commentanalyzer.v1alpha1.Error")
    assert detail["errorType"] == "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE"
    assert detail["languageNotSupportedByAttributeError"] == {
        "detectedLanguages": [] if languages else unread,
        "requestedLanguages": languages,
        "attribute": "TOXICITY",
    }


def test_a_scorer_that_says_nothing_of_languages_is_asked(server: Running) -> None:
    assert analyze(server, languages=["de"]).status_code == 200


def test_moderations(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        answer = client.moderations.create(input=TEXTS)
        results = answer.results
        assert [result.flagged for result in results] == [True, True, False]
        assert [result.category_scores.harassment for result in results] == [0.75, 0.25, 0.0]
        assert results[0].categories.harassment is True
        assert results[0].categories.violence is None  # not measured by the scorer
        assert answer.model == "reading"
        part: Any = [{"type": "text", "text": TEXTS[0]}]
        assert client.moderations.create(input=part).results[0].flagged
        assert client.moderations.create(input=TEXTS[0]).results[0].flagged
        picture: Any = [{"type": "image_url", "image_url": {"url": "http://x"}}]
        for wrong in (picture, [], ["x"] * 9):
            with pytest.raises(openai.BadRequestError):
                client.moderations.create(input=wrong)
    scorer = OpenAIModerationScorer(
        "a-model#harassment", key=KEY, url=f"{server.url}/v1", queries_per_second=100
    )
    assert scorer.score(TEXTS).tolist() == [0.75, 0.25, 0.0]


@pytest.fixture(scope="module")
def reading_server() -> Iterator[Running]:
    """A server whose scorer objects to "Yes" after a question about insults."""

    def agreement(exchanges: list[Exchange]) -> list[float]:
        return [float("insult" in str(context) and text == "Yes") for context, text in exchanges]

    agreement.reads = "exchange"  # type: ignore[attr-defined]
    with running(scorer=load_scorer(agreement)) as found:
        yield found


@pytest.mark.parametrize(
    ("context", "flagged"),
    [
        ("May I insult him?", [True, False]),
        ([{"role": "user", "content": "May I insult him?"}], [True, False]),
        ("May I thank him?", [False, False]),
        (None, [False, False]),
    ],
)
def test_moderations_take_a_context(
    reading_server: Running, context: Any, flagged: list[bool]
) -> None:
    body = {"input": ["Yes", "No"], "context": context}
    results = reading_server.post("/v1/moderations", body).json()["results"]
    assert [result["flagged"] for result in results] == flagged


@pytest.mark.parametrize(
    "context", [7, {}, [], [{"role": "assistant", "content": "Hi"}], [{"role": "user"}], "\ud800"]
)
def test_moderations_name_a_wrong_context(reading_server: Running, context: Any) -> None:
    answer = reading_server.post("/v1/moderations", {"input": "Yes", "context": context})
    assert answer.status_code == 400
    assert "context" in str(answer.json()["error"])


def test_perspective_takes_entries_of_a_context(reading_server: Running) -> None:
    def toxicity(*entries: str, **more: Any) -> float:
        context = {"entries": [{"text": entry} for entry in entries], **more}
        answer = analyze(reading_server, comment={"text": "Yes"}, context=context)
        score: float = answer.json()["attributeScores"]["TOXICITY"]["summaryScore"]["value"]
        return score

    assert toxicity("Hello.", "May I insult him?") == 1.0
    assert toxicity("May I thank him?") == 0.0
    assert toxicity() == toxicity(articleAndParentComment={}) == 0.0
    assert analyze(reading_server, context={"entries": "x"}).status_code == 400


def test_texts_that_wait_are_bounded_and_those_of_clients_that_left_are_not_scored() -> None:
    def scorer(texts: list[str]) -> list[float]:
        asked.append(texts)
        assert go.wait(PATIENCE)
        return [0.0] * len(texts)

    asked: list[list[str]] = []
    go = threading.Event()
    limits = Limits(max_waiting_texts=4, request_seconds=PATIENCE)
    with running(scorer=scorer, limits=limits) as server:
        threads = []
        for texts in (["one"], ["two", "three"]):
            body = {"input": texts}
            ask = partial(httpx.post, f"{server.url}/v1/moderations", json=body, timeout=PATIENCE)
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            wait_until(lambda: bool(asked))
        with suppress(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/moderations", json={"input": "left"}, timeout=0.5)
        wait_until(lambda: server.metric("tide_requests_in_flight") == 3)
        full = server.http.post("/v1/moderations", json={"input": ["a", "b"]})
        assert full.status_code == 429
        assert full.headers["retry-after"] == "1"
        go.set()
        for thread in threads:
            thread.join()
        assert asked == [["one"], ["two", "three"]]


def test_who_watches_a_server_does_not_stand_before_its_clients() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def away(texts: list[str]) -> list[float]:
        begun.set()
        assert go_on.wait(20)
        raise ScorerUnavailableError("down")

    scorer = MeasuredScorer(load_scorer(away), Metrics())
    scorer.up = False
    with ThreadPoolExecutor() as thread:
        first = thread.submit(scorer.check)
        assert begun.wait(20)
        assert not thread.submit(scorer.check).result(20)
        assert not first.done()
        go_on.set()
        assert not first.result(20)


def test_a_server_is_not_ready_while_the_screen_of_its_scorer_is_down() -> None:
    down = [True]

    def away(texts: list[str]) -> list[float]:
        if down:
            raise ScorerUnavailableError("down")
        return [0.0 for _ in texts]

    pair = [load_scorer(away), load_scorer("pocket")]
    scorer = MeasuredScorer(ConfirmScorer(pair), Metrics())
    screen = screen_of(scorer)
    assert screen is not None
    with pytest.raises(ScorerUnavailableError):
        screen.score(["a text"])
    assert not scorer.check()
    down.clear()
    assert scorer.check()


def test_calls_of_a_concurrent_scorer_run_side_by_side() -> None:
    both = threading.Barrier(2, timeout=20)

    def score(texts: list[str]) -> list[float]:
        both.wait()
        return [0.0] * len(texts)

    score.concurrent = True  # type: ignore[attr-defined]
    scorer = MeasuredScorer(load_scorer(score), Metrics())
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(scorer.score, ["a text"]) for _ in range(2)]
        assert [list(call.result(20)) for call in calls] == [[0.0], [0.0]]


def test_a_call_that_began_earlier_and_fails_later_leaves_a_scorer_ready() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def score(texts: list[str]) -> list[float]:
        if texts == ["slow"]:
            begun.set()
            assert go_on.wait(20)
            raise ScorerUnavailableError("no answer in time")
        return [0.0]

    score.concurrent = True  # type: ignore[attr-defined]
    scorer = MeasuredScorer(load_scorer(score), Metrics())
    with ThreadPoolExecutor() as thread:
        slow = thread.submit(scorer.score, ["slow"])
        assert begun.wait(20)
        scorer.score(["a text"])
        go_on.set()
        assert isinstance(slow.exception(20), ScorerUnavailableError)
    assert scorer.up


def test_a_scorer_that_is_also_a_screen_is_asked_by_one_thread_at_a_time() -> None:
    entered, go, at_once = threading.Event(), threading.Event(), []

    def score(texts: list[str]) -> list[float]:
        at_once.append(len(at_once) + 1)
        entered.set()
        go.wait(20)
        at_once.pop()
        return [0.0 if len(at_once) == 0 else 1.0] * len(texts)

    # The highest of a pair with a screen and of `score`: its screen calls `score`, too.
    pair = [CallableScorer(lambda texts: [0.0] * len(texts)) for _ in range(2)]
    members = [ConfirmScorer(pair), CallableScorer(score)]
    scorer = MeasuredScorer(MaxScorer(members), Metrics())
    assert isinstance(scorer.screen, MeasuredScorer)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda one=one: found.extend(one.score(["a text"])))
        for one in (scorer, scorer.screen)
    ]
    threads[0].start()
    assert entered.wait(20)
    entered.clear()
    threads[1].start()
    assert not entered.wait(0.2)
    go.set()
    for thread in threads:
        thread.join(20)
    assert found == [0.0, 0.0]


def test_the_discovery_document_names_the_address_that_was_asked() -> None:
    with running(keys=("sk-discovery",)) as server:
        assert server.http.get("/$discovery/rest").status_code == 401
        found = server.http.get("/$discovery/rest", params={"key": "sk-discovery"}).json()
    assert found["rootUrl"] == f"{server.url}/"
    method = found["resources"]["comments"]["methods"]["analyze"]
    assert method["path"] == "v1alpha1/comments:analyze"
    assert {method[name]["$ref"] for name in ("request", "response")} == found["schemas"].keys()


COMMENTS = ["You are a stupid idiot.", "Thank you, that was a lovely evening."]


def test_one_command_stands_in_for_perspective() -> None:
    with serving(*TIDE, "--perspective", "--scorer", "pocket") as server:
        client = PerspectiveScorer(key="any", url=server.url, queries_per_second=100)
        assert client.score(COMMENTS) == pytest.approx(load_scorer("pocket").score(COMMENTS))
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.get("/ready").status_code == 200
            assert http.get("/").status_code == 200
            for path, body in (
                ("completions", {"prompt": "Hello"}),
                ("chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
            ):
                refused = http.post(f"/v1/{path}", json=body)
                assert refused.status_code == 400
                assert "cannot complete texts" in refused.json()["error"]["message"]


def test_the_engine_without_a_model_refuses_every_prompt() -> None:
    with load_engine("none", "none") as engine, pytest.raises(InputError, match="has no model"):
        engine.tokenize(["Hello"])


def test_names_in_perspective_s_protocol() -> None:
    names = ("toxic", "severe_toxicity", "identity_hate", "sexual explicit", "threat")
    assert [perspective_name(name) for name in names] == [
        "TOXICITY", "SEVERE_TOXICITY", "IDENTITY_ATTACK", "SEXUALLY_EXPLICIT", "THREAT",
    ]  # fmt: skip
