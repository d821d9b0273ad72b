"""Spans of requests, read from the SDK's exporter in memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.command import tide
from tests.server.running import MODEL, listening, wait_until
from tests.worlds import ReadingScorer, scripted_engine
from tide.server.app import create_app
from tide.server.policies import CommandLine, Policies
from tide.server.tracing import Traced

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
        wait_until(lambda: bool(self._spans.get_finished_spans()))
        (span,) = self._spans.get_finished_spans()
        return answer, span


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = scripted_engine()
    line = CommandLine(engine.name, ReadingScorer(), preset="relative", overrides={})
    with closing(Policies(line)) as made:
        made.start(engine)
        app = Traced(create_app(made, MODEL), provider)
        with listening(app) as (url, _), httpx.Client(base_url=url, timeout=30) as http:
            yield World(http, exporter)


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_is_a_span_of_its_client(
    stream: bool, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tide.server"):
        answer, span = world.ask(
            prompt=PROMPT, max_tokens=5, n=2, temperature=0.5, seed=3, stream=stream,
            stream_options={"include_usage": True} if stream else None,
        )  # fmt: skip
        wait_until(lambda: "mine-1" in caplog.text)
    assert answer.is_success
    assert answer.headers["x-request-id"] == "mine-1"
    assert PROMPT not in span.to_json()
    if not stream:
        assert answer.json()["choices"][0]["text"].strip() not in span.to_json()
    assert span.name == f"text_completion {MODEL}"
    assert span.kind is SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    usage = (json.loads(events[-1]) if stream else answer.json())["usage"]
    found = of(span)
    assert found.pop("gen_ai.response.finish_reasons") == ("length", "length")
    assert found == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "tide.request_id": "mine-1",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "tide",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
    }
    assert [event.name for event in span.events] == ["gen_ai.evaluation.result"] * 2
    for event in span.events:
        assert event.attributes is not None
        assert event.attributes["gen_ai.evaluation.score.label"] == "accepted"
        assert 0 <= float(str(event.attributes["gen_ai.evaluation.score.value"])) < 0.5


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/moderations"])
def test_a_request_that_is_not_sampled_is_answered(world: World, path: str) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    answer = world.http.post(path, json={"prompt": PROMPT, "input": PROMPT}, headers=headers)
    assert answer.is_success


def test_what_fails_is_an_error(world: World) -> None:
    _, span = world.ask(prompt=PROMPT, max_tokens="many")
    assert span.name == "POST /v1/completions"
    assert (of(span)["http.response.status_code"], span.status.status_code) == (
        400,
        StatusCode.UNSET,
    )
    _, span = world.ask(prompt=PROMPT, model="another")
    assert span.status.status_code is StatusCode.ERROR
    assert of(span)["error.type"] == "Refused"
    _, span = world.ask(prompt=PROMPT, max_tokens=1 << 70)
    assert "gen_ai.request.max_tokens" not in of(span)


def test_probes_have_no_spans(world: World) -> None:
    world._spans.clear()
    for path in ("/health", "/ready", "/metrics"):
        assert world.http.get(path).status_code == 200
    assert world.http.get("/v1/models").status_code == 200
    wait_until(lambda: bool(world._spans.get_finished_spans()))
    assert [span.name for span in world._spans.get_finished_spans()] == ["GET /v1/models"]


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    assert tide("serve", "--otel") == 1
    assert "pip install -e '.[otel]'" in capsys.readouterr().err
