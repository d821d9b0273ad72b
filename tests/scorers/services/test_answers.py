"""Services with any answer: a score equals the one in a valid answer, or there is no score."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.generated import examples
from tests.hostile import KEY, answers, network, said
from tests.scorers.services.stand_ins import toxicity
from tide.core.errors import ScorerError
from tide.scorers.services import (
    CATEGORIES,
    OpenAIModerationScorer,
    PerspectiveScorer,
)

QUICK: dict[str, Any] = {
    "key": KEY, "url": "http://service.test", "queries_per_second": 10_000, "attempts": 1,
}  # fmt: skip
pytestmark = pytest.mark.attack
ALL = settings(examples(15, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = ["a text", "another text"]
Make = Callable[[Any], httpx.Response]


def is_score(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def perspective(body: Any) -> Any:
    score = {"value": toxicity(body["comment"]["text"]), "type": "PROBABILITY"}
    return {"attributeScores": {"TOXICITY": {"summaryScore": score}}, "languages": ["en"]}


def read_perspective(answer: Any) -> Any:
    return [answer["attributeScores"]["TOXICITY"]["summaryScore"]["value"]]


def moderation(body: Any) -> Any:
    rows = [dict.fromkeys(CATEGORIES, toxicity(text)) for text in body["input"]]
    return {"id": "x", "results": [{"flagged": False, "category_scores": row} for row in rows]}


def read_moderation(answer: Any) -> Any:
    rows = [result["category_scores"] for result in answer["results"]]
    assert all(is_score(row[name]) for row in rows for name in CATEGORIES)
    return [max(row[name] for name in CATEGORIES) for row in rows]


@pytest.mark.parametrize(
    ("make_scorer", "texts", "right", "read"),
    [
        (PerspectiveScorer, TEXTS[:1], perspective, read_perspective),
        (OpenAIModerationScorer, TEXTS, moderation, read_moderation),
    ],
)
@given(make=answers())
@ALL
def test_a_service_gives_what_its_answer_says_or_one_line(
    make_scorer: Any,
    texts: list[str],
    right: Any,
    read: Any,
    make: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    meant: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.host == "service.test"
        response = make(right(json.loads(request.content)))
        meant.append(said(response))
        return response

    caplog.set_level(logging.DEBUG, "httpx")
    with network(answer):
        try:
            scores = make_scorer(**QUICK).score(texts).tolist()
        except ScorerError as error:
            refusal = str(error)
            assert len(refusal.splitlines()) == 1
            assert len(refusal) < 2000
            assert KEY not in refusal
        else:
            assert len(meant) == 1
            assert all(map(is_score, scores))
            assert scores == read(meant[0])
    assert KEY not in caplog.text
    caplog.clear()
