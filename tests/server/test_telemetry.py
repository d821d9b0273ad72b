"""Budgets of policies, and spans of requests read from the SDK's exporter in memory."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.fakes import Babbler, FakeScorer, RudeScorer
from tests.server.running import BACKTRACK, running, wait_for_forecasts, wait_until, written
from tide.scorers.wrappers import ConfirmScorer
from tide.server.telemetry import Budget, Metrics


@pytest.mark.parametrize("mode", ["enforce", "monitor"])
def test_policy_over_its_budget(
    mode: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policies = {"only": {"alter_at_most": 0.02, "mode": mode}}
    path = written(tmp_path / "tide.yaml", policies=policies)
    with (
        caplog.at_level(logging.WARNING, "tide.server"),
        running(Babbler(0.2), RudeScorer(), policies=path, **BACKTRACK) as server,
    ):
        for seed in range(4):
            assert server.ask("x y", n=5, seed=seed).status_code == 200
        wait_until(lambda: server.metric('tide_policy_altered_evidence{policy="only"}') > 1000)
        assert server.metric('tide_policy_alter_at_most{policy="only"}') == 0.02
    (warning,) = (json.loads(r.getMessage()) for r in caplog.records if "over_bud" in r.message)
    assert warning["over_budget"]["policy"] == "only"
    assert warning["over_budget"]["alter_at_most"] == 0.02
    assert warning["over_budget"]["altered"] > 0.5


def test_a_policy_within_its_budget_does_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    kept, without = Budget("kept", 0.1, metrics), Budget("without", None, metrics)
    for number in range(1000):
        kept.count(altered=number % 10 == 0)
        without.count(altered=True)
    assert not caplog.records
    text = metrics.text().decode()
    assert 'tide_policy_altered_evidence{policy="kept"}' in text
    assert "altered_share" not in text  # a gauge of several workers has the highest share
    assert 'policy="without"' not in text


# A hundredth for each word; and the same with a screen that doubts every text.
LENGTH = FakeScorer(lambda text: min(1.0, len(text.split()) / 100), pace="word")
SCREENED = ConfirmScorer([FakeScorer(lambda text: 0.95, pace="word"), LENGTH])


@pytest.mark.parametrize("scorer", [LENGTH, SCREENED], ids=["one", "screened"])
def test_score_in_the_log_is_the_lowest_passing_threshold(scorer: Any, tmp_path: Path) -> None:
    found = []
    for threshold in (0.15, 0.6):
        log = tmp_path / f"{threshold}.jsonl"
        options = {"monitor_log": log, "toxicity_threshold": threshold, **BACKTRACK}
        with running(Babbler(0.0), scorer, mode="monitor", **options) as server:
            texts = [choice["text"] for choice in server.ask("x y", n=8, seed=1).json()["choices"]]
            wait_for_forecasts(server, 8)
        lines = sorted(map(json.loads, log.read_text().splitlines()), key=lambda x: x["choice"])
        found.append([line["accepted_above"] for line in lines])
        for line, text in zip(lines, texts, strict=True):
            assert line["accepted_above"] == pytest.approx(len(text.split()) / 100)
            assert (line["outcome"] == "changed") is (line["accepted_above"] >= threshold)
        assert not math.isclose(min(found[-1]), max(found[-1]))
    assert found[0] == found[1]


PROMPT = "a prompt that is nobody's business"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


Ask = Callable[..., tuple[httpx.Response, ReadableSpan]]


@pytest.fixture(scope="module")
def ask(exporter: InMemorySpanExporter) -> Iterator[Ask]:
    """Answers a request, and returns its span, too."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-1"}

    def of_server() -> list[ReadableSpan]:
        spans = exporter.get_finished_spans()
        return [span for span in spans if span.kind is SpanKind.SERVER]

    with running(tracing=provider) as server:

        def ask(path: str = "/v1/completions", **body: Any) -> tuple[httpx.Response, ReadableSpan]:
            exporter.clear()
            answer = server.http.post(path, json=body, headers=headers)
            wait_until(lambda: bool(of_server()))
            (span,) = of_server()
            return answer, span

        yield ask


@pytest.mark.parametrize("stream", [False, True])
def test_span_and_log_of_a_completion(
    stream: bool, ask: Ask, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tide.server"):
        answer, span = ask(prompt=PROMPT, max_tokens=5, n=2, stream=stream)
        wait_until(lambda: "mine-1" in caplog.text)
    (line,) = [json.loads(message) for message in caplog.messages if "mine-1" in message]
    assert (line["policy"], line["tokens"]) == ("default", 4)
    assert 0 <= line["first"] <= line["seconds"]
    assert answer.headers["x-request-id"] == "mine-1"
    assert span.name == "POST /v1/completions"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.attributes is not None
    assert span.attributes["tide.request_id"] == "mine-1"
    assert span.attributes["http.route"] == "/v1/completions"
    assert [event.name for event in span.events] == ["gen_ai.evaluation.result"] * 2
    for event in span.events:
        assert event.attributes is not None
        assert event.attributes["gen_ai.evaluation.score.label"] == "accepted"
        assert 0 <= float(str(event.attributes["gen_ai.evaluation.score.value"])) < 0.5
    if not stream:
        text = answer.json()["choices"][0]["text"].strip()
        assert all(text not in span.to_json() for span in exporter.get_finished_spans())


def test_error_and_its_span_quote_no_text(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    _, span = ask(prompt=PROMPT, max_tokens="many")
    assert span.status.status_code is StatusCode.UNSET

    async def crash(*_: Any) -> None:
        raise KeyError(PROMPT)

    monkeypatch.setattr("tide.server.scoring.ScoringApi.moderate", crash)
    answer, span = ask("/v1/moderations", input=PROMPT)
    assert answer.status_code == 500
    assert "an internal error" in answer.text
    assert PROMPT not in answer.text
    assert span.status.status_code is StatusCode.ERROR
    assert PROMPT not in span.to_json()


def test_span_holds_no_key_of_the_query(ask: Ask) -> None:
    body = {"comment": {"text": PROMPT}, "requestedAttributes": {"TOXICITY": {}}}
    answer, span = ask("/v1alpha1/comments:analyze?key=sk-secret", **body)
    assert answer.is_success
    assert "sk-secret" not in span.to_json()
    assert PROMPT not in span.to_json()
