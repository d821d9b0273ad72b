"""Spans of requests, read from the SDK's exporter in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.server.running import MODEL, listening, wait_until
from tests.worlds import ReadingScorer, scripted_engine
from tide.server.app import create_app
from tide.server.policies import CommandLine, Policies

PROMPT = "a prompt that is nobody's business"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class World:
    def __init__(self, http: httpx.Client, spans: InMemorySpanExporter) -> None:
        self.http, self._spans = http, spans

    def ask(
        self, path: str = "/v1/completions", **body: Any
    ) -> tuple[httpx.Response, ReadableSpan]:
        """The answer to a request, and its span."""
        self._spans.clear()
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine-1"}
        answer = self.http.post(path, json=body, headers=headers)
        wait_until(lambda: any(span.kind is SpanKind.SERVER for span in self.spans))
        (span,) = (span for span in self.spans if span.kind is SpanKind.SERVER)
        return answer, span

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._spans.get_finished_spans()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = scripted_engine()
    line = CommandLine(engine.name, ReadingScorer(), preset="relative", overrides={})
    with closing(Policies(line)) as policies:
        policies.start(engine)
        app = create_app(policies, MODEL, tracing=provider)
        with listening(app) as (url, _), httpx.Client(base_url=url, timeout=30) as http:
            yield World(http, exporter)


@pytest.mark.parametrize("stream", [False, True])
def test_span_of_a_completion(stream: bool, world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tide.server"):
        answer, span = world.ask(prompt=PROMPT, max_tokens=5, n=2, stream=stream)
        wait_until(lambda: "mine-1" in caplog.text)
    assert answer.is_success
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
        assert all(text not in span.to_json() for span in world.spans)


def test_span_of_an_error_quotes_no_text(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, span = world.ask(prompt=PROMPT, max_tokens="many")
    assert span.status.status_code is StatusCode.UNSET

    async def crash(*_: Any) -> None:
        raise KeyError(PROMPT)

    monkeypatch.setattr("tide.server.scoring.ScoringApi.moderate", crash)
    answer, span = world.ask("/v1/moderations", input=PROMPT)
    assert answer.status_code == 500
    assert span.status.status_code is StatusCode.ERROR
    assert PROMPT not in span.to_json()


def test_span_holds_no_key_of_the_query(world: World) -> None:
    body = {"comment": {"text": PROMPT}, "requestedAttributes": {"TOXICITY": {}}}
    answer, span = world.ask("/v1alpha1/comments:analyze?key=sk-secret", **body)
    assert answer.is_success
    assert "sk-secret" not in span.to_json()
    assert PROMPT not in span.to_json()
