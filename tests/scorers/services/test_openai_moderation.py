from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.scorers.services.stand_ins import Moderation, Service, running, toxicity, without_waiting
from tide.core.errors import InputError, ScorerError, ScorerRefusedError
from tide.scorers import load_scorer, score_texts
from tide.scorers.services.moderation import OpenAIModerationScorer

KEY = "sk-not-a-real-key-0123456789"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with running(Moderation) as service:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", service.url)
        yield service


def quick(**options: Any) -> OpenAIModerationScorer:
    defaults = {"queries_per_second": 500, "attempts": 3, "backoff": 0.001}
    return OpenAIModerationScorer(**{**defaults, **options})


def test_speaks_the_wire_format_in_batches(service: Service) -> None:
    scorer = load_scorer("openai-moderation")
    where = f"127.0.0.1:{service.server_port}"
    assert scorer.name == f"openai-moderation:omni-moderation-2024-09-26@{where}"
    texts = [f"text {i}" for i in range(70)]
    assert quick().score(texts) == pytest.approx([toxicity(text) for text in texts])
    assert sorted(len(r["body"]["input"]) for r in service.requests) == [6, 32, 32]
    assert service.requests[0]["body"]["model"] == "omni-moderation-2024-09-26"


def test_other_categories(service: Service) -> None:
    scorer = quick(categories=("violence", "hate"))
    assert "#violence,hate" in scorer.name
    assert scorer.score(["a text"]) == pytest.approx([0.99])
    with pytest.raises(ScorerError, match="no category 'rudeness'; it has harassment"):
        quick(categories=("rudeness",)).score(["a text"])


def test_a_category_that_one_row_lacks(service: Service) -> None:
    service.answer = lambda number: "one row lacks one"
    with pytest.raises(ScorerError, match="no category 'hate'; it has harassment"):
        quick().score(["a text", "two texts"])


@pytest.mark.parametrize(
    ("failure", "error", "message"),
    [
        ("no credit", ScorerRefusedError, "HTTP 429 insufficient_quota; check OPENAI_API_KEY"),
        ("bad key", ScorerRefusedError, "HTTP 401 invalid_api_key"),
    ],
)
def test_a_refusal_is_not_tried_again(
    service: Service, failure: str, error: type[ScorerError], message: str
) -> None:
    service.answer = lambda number: failure
    with pytest.raises(ScorerError, match=message) as caught:
        quick().score(["a text"])
    assert type(caught.value) is error
    assert KEY not in str(caught.value)
    assert len(service.requests) == 1


def test_a_thousand_texts_through_a_misbehaving_server(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_waiting(service, monkeypatch)
    failures = ["burst", "broken", "unavailable", "bad json"]
    service.answer = lambda n: failures[n // 5 % 4] if n % 5 == 2 else "ok"
    texts = [f"text number {i}" for i in range(1000)]
    scorer = OpenAIModerationScorer(concurrency=2, attempts=10)
    scores = score_texts(scorer, texts, "zero")
    assert scores.values == pytest.approx([toxicity(text) for text in texts])
    assert max(service.scored.values()) == 1
    assert service.most_in(2) <= 5 * 2 + 1 + 2


def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InputError, match="set the environment variable OPENAI_API_KEY"):
        load_scorer("openai-moderation")
