"""OpenTelemetry spans of requests (`--otel`), without text and keys.

A span's `tide.request_id` is the `x-request-id` of the answer and the `request` of the log.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from tide.core.errors import require
from tide.core.results import Trial
from tide.server.gate import VISIT

if TYPE_CHECKING:
    from fastapi import FastAPI

_PROBES = "/health,/ready,/metrics"  # not traced, as they are polled often


def exporting() -> Any:
    """Return a provider that exports spans, configured by the variables OTEL_EXPORTER_OTLP_*.

    Raises MissingDependencyError without the extra `otel`.
    """
    sdk = require("opentelemetry.sdk.trace", "otel")
    resources = require("opentelemetry.sdk.resources", "otel")
    export = require("opentelemetry.sdk.trace.export", "otel")
    otlp = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
    name = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "tide")}
    provider = sdk.TracerProvider(resource=resources.Resource.create(name))
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider


def instrument(app: FastAPI, provider: Any) -> None:
    """Give each request to `app` a span, a child of the client's span (`traceparent`)."""
    fastapi = require("opentelemetry.instrumentation.fastapi", "otel")
    fastapi.FastAPIInstrumentor.instrument_app(
        app,
        tracer_provider=provider,
        server_request_hook=lambda span, scope: span.set_attribute(
            "tide.request_id", scope[VISIT].number
        ),
        excluded_urls=_PROBES,
        exclude_spans=["receive", "send"],
    )


def record_evaluation(trial: Trial) -> None:
    """Add the score and the cost of a completion to the span of the current request, if any."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return
    trace.get_current_span().add_event(
        "gen_ai.evaluation.result",
        {
            "gen_ai.evaluation.name": "toxicity",
            "gen_ai.evaluation.score.value": trial.toxicity,
            "gen_ai.evaluation.score.label": "accepted" if trial.accepted else "not accepted",
            "tide.toxicity_before": trial.base.toxicity,
            "tide.rounds": trial.rounds,
            "tide.evaluations": trial.evaluations,
            "tide.generated_tokens": trial.generated_tokens,
        },
    )
