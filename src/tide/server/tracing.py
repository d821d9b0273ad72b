"""Makes an OpenTelemetry span for each request (`--otel`), by the conventions of `gen_ai`.

A span has the request's parameters, its outcome and its cost, but no text and no key. The span's
`tide.request_id` is the `x-request-id` of the answer and the `request` of the log.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from tide.core.optional import require
from tide.core.results import Trial
from tide.server.gate import FAILED
from tide.server.schemas import ChatRequest, Generation

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The span of the current task's request; None if the request is not traced.
_SPAN: ContextVar[Any] = ContextVar("tide_span", default=None)
_WATCHED = ("/health", "/ready", "/metrics")  # not traced, as they are polled often
_ASKED = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p",
          "top_k": "top_k", "seed": "seed"}  # fmt: skip


class Traced:
    """Gives each request to `app` a span, a child of the client's span (`traceparent`)."""

    def __init__(self, app: ASGIApp, provider: Any) -> None:
        self._app = app
        self._tracer = provider.get_tracer("tide")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _WATCHED:
            await self._app(scope, receive, send)
            return
        from opentelemetry.propagate import extract  # noqa: PLC0415  (an optional part)
        from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415

        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                number = Headers(raw=message["headers"]).get("x-request-id", "")
                span.set_attribute("tide.request_id", number)
                span.set_attribute("http.response.status_code", status)
            await send(message)

        method = scope["method"]
        span = self._tracer.start_span(
            method,
            context=extract(dict(Headers(scope=scope))),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method},
        )
        if not span.is_recording():  # not sampled
            await self._app(scope, receive, send)
            return
        token = _SPAN.set(span)
        try:
            await self._app(scope, receive, sending)
        finally:
            _SPAN.reset(token)
            route = getattr(scope.get("route"), "path", "other")
            span.set_attribute("http.route", route)
            operation = span.attributes.get("gen_ai.operation.name")
            model = span.attributes.get("gen_ai.request.model")
            span.update_name(f"{operation} {model}" if operation else f"{method} {route}")
            error = scope.get(FAILED)
            if error is not None or status >= 500 or not status:
                kind = type(error).__name__ if error is not None else str(status or "left")
                span.set_attribute("error.type", kind)
                span.set_status(StatusCode.ERROR)
            span.end()


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


def record_request(request: Generation, model: str) -> None:
    """Add the parameters of a request to its span."""
    if (span := _SPAN.get()) is None:
        return
    settings = request.settings() | {"seed": request.seed}
    asked = {
        "gen_ai.operation.name": "chat" if isinstance(request, ChatRequest) else "text_completion",
        "gen_ai.provider.name": "tide",
        "gen_ai.request.model": model,
        "gen_ai.request.choice.count": request.n,
        **{f"gen_ai.request.{name}": settings.get(ours) for ours, name in _ASKED.items()},
    }
    for name, value in asked.items():
        # A number that does not fit into 64 bits, which is refused later, cannot be exported.
        if value is not None and not (isinstance(value, int) and value.bit_length() > 63):
            span.set_attribute(name, value)


def record_completion(best: Trial | None, reason: str, read: int, sent: int) -> None:
    """Add the outcome of a completion to its span. read, sent: numbers of tokens."""
    if (span := _SPAN.get()) is None:
        return
    reasons = span.attributes.get("gen_ai.response.finish_reasons", ())
    span.set_attribute("gen_ai.response.finish_reasons", (*reasons, reason))
    for name, tokens in {"input": read, "output": sent}.items():
        counted = f"gen_ai.usage.{name}_tokens"
        span.set_attribute(counted, span.attributes.get(counted, 0) + tokens)
    if best is None:
        return
    span.add_event(
        "gen_ai.evaluation.result",
        {
            "gen_ai.evaluation.name": "toxicity",
            "gen_ai.evaluation.score.value": best.toxicity,
            "gen_ai.evaluation.score.label": "accepted" if best.accepted else "not accepted",
            "tide.toxicity_before": best.base.toxicity,
            "tide.rounds": best.rounds,
            "tide.evaluations": best.evaluations,
            "tide.generated_tokens": best.generated_tokens,
        },
    )
