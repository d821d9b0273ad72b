"""The scoring APIs, as clients of Perspective and OpenAI see them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.fakes import FailingScorer, FakeScorer, HeldScorer
from tests.server.processes import TIDE, serving
from tests.server.running import ASKED, PATIENCE, Running, running, wait_until
from tests.worlds import ReadingScorer, read
from tide.core.errors import ScorerUnavailableError
from tide.scorers import load_scorer
from tide.scorers.base import Attributed
from tide.scorers.wrappers import ConfirmScorer, FallbackScorer, MaxScorer
from tide.server.limits import Limits
from tide.server.scoring import perspective_name
from tide.server.telemetry import MeasuredScorer, Metrics

KEY = "the-key-of-these-tests"
TEXTS = ["toxicity 0.75", "toxicity 0.25", "a plain text"]


def perspective(server: Any, text: str, attributes: str = "TOXICITY", key: str = KEY) -> Any:
    """The answer to a client of Perspective, whose key stands in the address."""
    names = attributes.split(",")
    body = {"comment": {"text": text}, "requestedAttributes": {name: {} for name in names}}
    url = f"{server.url}/v1alpha1/comments:analyze"
    answer = httpx.post(url, params={"key": key}, json=body, timeout=PATIENCE).json()
    if "error" in answer:
        return str(answer["error"])
    return [answer["attributeScores"][name]["summaryScore"]["value"] for name in names]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(keys=(KEY,), limits=Limits(max_texts=8)) as server:
        server.http.headers["x-api-key"] = KEY
        yield server


def test_a_client_of_perspective_needs_another_address_alone(server: Running) -> None:
    assert [perspective(server, text) for text in TEXTS] == [[0.75], [0.25], [0.0]]
    assert "COMMENT_EMPTY" in perspective(server, " ")
    assert "UNKNOWN_ATTRIBUTE" in perspective(server, "text", "INSULT")
    assert "invalid_api_key" in perspective(server, "text", key="another-key")


def analyze(server: Running, **more: Any) -> Any:
    body = {"comment": {"text": TEXTS[0]}, "requestedAttributes": {"TOXICITY": {}}, **more}
    return server.post("/v1alpha1/comments:analyze", body)


def test_perspective_s_answer(server: Running) -> None:
    score = {"value": 0.75, "type": "PROBABILITY"}
    spans = [{"begin": 0, "end": 13, "score": score}]
    answer = analyze(server, doNotStore=True, languages=["en"], clientToken="mine").json()
    assert answer == {
        "attributeScores": {"TOXICITY": {"spanScores": spans, "summaryScore": score}},
        "languages": ["en"],
        "clientToken": "mine",
    }
    some = analyze(server, requestedAttributes={"TOXICITY": {}, "INSULT": {}}).json()
    assert list(some["attributeScores"]) == ["TOXICITY"]
    assert "detectedLanguages" not in some
    assert "TOXICITY" in analyze(server, comment={"text": "ok"}).json()["attributeScores"]
    below = {"TOXICITY": {"scoreThreshold": 0.8}}
    assert analyze(server, requestedAttributes=below).json()["attributeScores"] == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"requestedAttributes": {}},
        {"requestedAttributes": {"INSULT": {}, "THREAT": {}}},
        # Left out, it would read as a score below the threshold.
        {"requestedAttributes": {"TOXICITY": {}, "INSULT": {"scoreThreshold": 0.9}}},
        {"requestedAttributes": {"TOXICITY": {"scoreThreshold": "x"}}},
        {"requestedAttributes": {"TOXICITY": {"scoreThreshold": math.nan}}},
        {"requestedAttributes": {"TOXICITY": {"scoreThreshold": math.inf}}},
        {"comment": {"text": " \n"}},
        {"comment": None},
        {"context": {"entries": "x"}},
        {"context": "x"},
    ],
)
def test_perspective_s_error(server: Running, wrong: dict[str, Any]) -> None:
    answer = analyze(server, **wrong)
    assert answer.status_code == answer.json()["error"]["code"] == 400
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_perspective_s_other_attributes_are_those_that_the_scorer_has() -> None:
    def score(texts: Sequence[str]) -> Attributed:
        scores = np.array(read(texts))
        return Attributed(scores, {"insult": scores / 2, "threat": scores / 10, "toxic": scores})

    names = ("insult", "threat", "toxic")
    with running(scorer=FakeScorer(attributes=names, score_attributes=score)) as server:
        insults = [perspective(server, text, "INSULT") for text in TEXTS]
        assert insults == [[0.375], [0.125], [0.0]]
        both = [perspective(server, text, "TOXICITY,THREAT") for text in TEXTS]
        assert both == [[0.75, 0.075], [0.25, 0.025], [0.0, 0.0]]
        wanted = {"INSULT": {"scoreThreshold": 0.5}, "TOXICITY": {"scoreThreshold": 0.5}}
        above = analyze(server, requestedAttributes=wanted).json()["attributeScores"]
        assert list(above) == ["TOXICITY"]
        refused = analyze(server, requestedAttributes={"PROFANITY": {}})
        assert "known: TOXICITY, INSULT, THREAT" in refused.text
        assert server.metric("tide_scorer_texts_total") == 7


@pytest.mark.parametrize(
    ("wanted", "status"),
    [
        ({"TOXICITY": {}, "INSULT": {}}, 200),
        ({"INSULT": {}}, 503),
        ({"TOXICITY": {}, "INSULT": {"scoreThreshold": 0.9}}, 503),
    ],
)
def test_attribute_that_a_fallback_lacks(wanted: dict[str, Any], status: int) -> None:
    def down(texts: Sequence[str]) -> Attributed:
        raise ScorerUnavailableError("down")

    first = FakeScorer(attributes=("insult",), score_attributes=down)
    with running(scorer=FallbackScorer([first, ReadingScorer()])) as server:
        answer = analyze(server, requestedAttributes=wanted)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["attributeScores"].keys() == {"TOXICITY"}


GERMAN = "Das Wetter ist heute sch\u00f6n und die Leute sind nicht auf der Stra\u00dfe"


@pytest.fixture(scope="module")
def english() -> Iterator[Running]:
    with running(scorer=load_scorer("windows:max:lexicon,pocket")) as found:
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
    (detail,) = error["details"]
    assert detail["@type"].endswith("google.commentanalyzer.v1alpha1.Error")
    assert detail["errorType"] == "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE"
    assert error["message"].endswith(f"languages: {unread[0]}")


def test_moderations(server: Running) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        answer = client.moderations.create(input=TEXTS)
        results = answer.results
        assert [result.flagged for result in results] == [True, True, False]
        assert [result.category_scores.harassment for result in results] == [0.75, 0.25, 0.0]
        assert results[0].categories.harassment is True
        assert results[0].categories.violence is None  # not measured by the scorer
        assert answer.model == "reading"
        parts: Any = [{"type": "text", "text": text} for text in TEXTS[:2]]
        (result,) = client.moderations.create(input=parts).results  # parts are one input
        assert result.flagged
        assert client.moderations.create(input=TEXTS[0]).results[0].flagged
        picture: Any = [{"type": "image_url"}]
        for wrong in (picture, [], ["x"] * 9):
            with pytest.raises(openai.BadRequestError):
                client.moderations.create(input=wrong)


@pytest.fixture(scope="module")
def reading_server() -> Iterator[Running]:
    """A server whose scorer objects to "Yes" after a question about insults."""
    scorer = FakeScorer(
        lambda asked: float("insult" in str(asked.context) and asked.text == "Yes"),
        reads="exchange",
    )
    with running(scorer=scorer) as server:
        yield server


@pytest.mark.parametrize(
    ("context", "flagged"),
    [
        ("May I insult him?", [True, False]),
        ([{"role": "user", "content": "May I insult him?"}], [True, False]),
        ("May I thank him?", [False, False]),
        (None, [False, False]),
    ],
)
def test_context_of_moderations(reading_server: Running, context: Any, flagged: list[bool]) -> None:
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
    def toxicity(**context: Any) -> float:
        answer = analyze(reading_server, comment={"text": "Yes"}, context=context)
        score: float = answer.json()["attributeScores"]["TOXICITY"]["summaryScore"]["value"]
        return score

    assert toxicity(entries=[{"text": "Hello."}, {"text": "May I insult him?"}]) == 1.0
    assert toxicity(entries=[{"text": "May I thank him?"}]) == 0.0
    assert toxicity(entries=[]) == toxicity(articleAndParentComment={}) == 0.0


def test_texts_that_wait_are_bounded_and_those_of_clients_that_left_are_not_scored() -> None:
    scorer = HeldScorer()
    limits = Limits(max_waiting_texts=4, request_seconds=PATIENCE)
    with running(scorer=scorer, limits=limits) as server, ThreadPoolExecutor() as clients:

        def moderate(*texts: str, timeout: float = PATIENCE) -> httpx.Response:
            url = f"{server.url}/v1/moderations"
            return httpx.post(url, json={"input": texts}, timeout=timeout)

        clients.submit(moderate, "one")
        assert scorer.entered.wait(PATIENCE)
        clients.submit(moderate, "two", "three")
        with suppress(httpx.ReadTimeout):
            moderate("left", timeout=0.5)
        wait_until(lambda: server.metric("tide_requests_in_flight") == 3)
        full = moderate("a", "b")
        scorer.go.set()
        wait_until(lambda: moderate(*"abcd").status_code == 200, 20)
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    assert scorer.calls == [["one"], ["two", "three"], [*"abcd"]]


def test_who_watches_a_server_does_not_stand_before_its_clients() -> None:
    held = HeldScorer(ScorerUnavailableError("down"))
    scorer = MeasuredScorer(held, Metrics())
    scorer.up = False
    with ThreadPoolExecutor() as threads:
        call = threads.submit(scorer.score, ["slow"])
        assert held.entered.wait(PATIENCE)
        assert not threads.submit(scorer.check).result(PATIENCE)
        assert not call.done()
        held.go.set()
        assert isinstance(call.exception(PATIENCE), ScorerUnavailableError)


def test_a_server_is_not_ready_while_the_screen_of_its_scorer_is_down() -> None:
    failing = FailingScorer(ScorerUnavailableError("down"))
    scorer = MeasuredScorer(ConfirmScorer([failing, load_scorer("pocket")]), Metrics())
    screen = scorer.screen
    assert screen is not None
    with pytest.raises(ScorerUnavailableError):
        screen.score(["a text"])
    assert not scorer.check()
    failing.error = None
    assert scorer.check()


@pytest.mark.parametrize("concurrent", [False, True])
def test_scorer_is_asked_by_one_thread_at_a_time_unless_concurrent(concurrent: bool) -> None:
    held = HeldScorer(concurrent=concurrent)
    # The highest of a pair with a screen and of `held`: its screen calls `held`, too.
    pair = [FakeScorer(concurrent=concurrent), FakeScorer(concurrent=concurrent)]
    scorer = MeasuredScorer(MaxScorer([ConfirmScorer(pair), held]), Metrics())
    assert isinstance(scorer.screen, MeasuredScorer)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(scorer.score, ["slow"])
        assert held.entered.wait(PATIENCE)
        other = threads.submit(scorer.screen.score, ["quick"])
        if concurrent:
            other.result(PATIENCE)
        else:
            time.sleep(0.2)
            assert not other.done()
        held.go.set()
        assert slow.result(PATIENCE).tolist() == other.result(PATIENCE).tolist() == [0.0]


def test_the_discovery_document_names_the_address_that_was_asked() -> None:
    with running(keys=("sk-discovery",)) as server:
        # Node's client asks without a key.
        found = server.http.get("/$discovery/rest").json()
    assert found["rootUrl"] == f"{server.url}/"
    method = found["resources"]["comments"]["methods"]["analyze"]
    assert method["path"] == "v1alpha1/comments:analyze"
    assert {method[name]["$ref"] for name in ("request", "response")} == found["schemas"].keys()


def test_one_command_stands_in_for_perspective() -> None:
    comments = ["You are a stupid idiot.", "Thank you, that was a lovely evening."]
    with serving(*TIDE, "--perspective", "--scorer", "pocket") as server:
        scores = [perspective(server, comment)[0] for comment in comments]
        assert scores == pytest.approx(load_scorer("pocket").score(comments))
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert http.get("/ready").status_code == 200
            assert http.get("/").status_code == 200
            for path, body in ASKED.items():
                refused = http.post(path, json=body)
                assert refused.status_code == 400
                assert "cannot complete texts" in refused.json()["error"]["message"]


def test_names_in_perspective_s_protocol() -> None:
    names = ("toxic", "severe_toxicity", "identity_hate", "sexual explicit", "threat")
    assert [perspective_name(name) for name in names] == [
        "TOXICITY", "SEVERE_TOXICITY", "IDENTITY_ATTACK", "SEXUALLY_EXPLICIT", "THREAT",
    ]  # fmt: skip
