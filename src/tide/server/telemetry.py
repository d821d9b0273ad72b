"""What operators see: metrics for Prometheus, budgets of policies, and spans for OpenTelemetry.

They hold counts, times and scores, never any text or key. A span's `tide.request_id` is the
`x-request-id` of the answer and the `request` of the log.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tide.core.errors import ScorerError, require
from tide.core.results import Result, Trial
from tide.evaluation.thresholds import evidence
from tide.scorers.base import FALLBACK, HEALTH_TEXT, Attributed, Exchange, Scorer, ScorerWrapper
from tide.scorers.languages import language_of
from tide.server.gate import LOG, VISIT
from tide.server.monitor import Draft

if TYPE_CHECKING:
    from fastapi import FastAPI

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_SCORES = tuple(i / 10 for i in range(11))
# With this evidence, a warning is false for at most one of twenty policies that keep their budget.
_CONVINCING = 20.0
_PROBES = "/health,/ready,/metrics"  # not traced, as they are polled often


class Metrics:
    """The metrics of one server.

    With several processes (`tide serve --workers`), `text` sums them; of a budget, it has the
    process that is nearest to its end.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, namespace="tide", registry=self._registry)
        # The status of a request whose client has disconnected is 499.
        self.requests = counter("requests", "Requests", ("route", "status"))
        self.answers = counter("answers", "Requests for text", ("policy", "key", "status"))
        self.reloads = counter("reloads", "Reloads of the policy file", ("outcome",))
        self.outcomes = counter("completions", "Completions by outcome", ("outcome",))
        self.rounds = counter("rounds", "Engine calls that the completions took part in")
        self.evaluations = counter("evaluations", "Texts generated and scored for completions")
        self.generated = counter("generated_tokens", "Tokens that the model wrote")
        self.monitored = counter(
            "monitor_answers",
            "Answers by what enforcing would do; beside: the policy whose shadow is `policy`",
            ("policy", "beside", "outcome"),
        )
        self.of_policy = counter("policy_answers", "Enforced answers", ("policy", "outcome"))
        self.guardrail = counter(
            "guardrail_answers", "Answers to litellm's guardrail", ("policy", "outcome")
        )
        self.scored = counter("scorer_texts", "Texts sent to the scorer")
        self.failed = counter("scorer_errors", "Failed calls of the scorer", ("kind",))
        self.fallbacks = counter(
            "scorer_fallback_texts", "Texts that a second scorer decided, as the first was down"
        )
        self.languages = counter(
            "unread_answers", "Answers in a language that the scorer does not read", ("language",)
        )

        gauge = partial(Gauge, namespace="tide", registry=self._registry)
        # The scraped process sets it, and what others have set before may no longer hold.
        self.engine_up = gauge(
            "engine_up", "1 if the model answers", multiprocess_mode="livemostrecent"
        )
        total = partial(gauge, multiprocess_mode="livesum")
        self.in_flight = total("requests_in_flight", "Requests not yet fully answered")
        self.under_way = total("completions_under_way", "Completions running or queued")
        highest = partial(gauge, multiprocess_mode="livemax", labelnames=("policy",))
        self.alter_at_most = highest("policy_alter_at_most", "Budget of altered answers")
        self.altered_evidence = highest(
            "policy_altered_evidence", "Evidence that the budget is exceeded; from 20 on, a warning"
        )

        histogram = partial(Histogram, namespace="tide", registry=self._registry)
        seconds = partial(histogram, buckets=_SECONDS)
        self.seconds = seconds("request_seconds", "Time of a request", ("route",))
        self.first_text = seconds("first_text_seconds", "Time to the first text", ("policy",))
        self.scoring = seconds("scorer_seconds", "Time of a scorer call")
        scores = partial(histogram, buckets=_SCORES)
        self.before = scores("toxicity_before", "Score of the model's own text")
        self.after = scores("toxicity_after", "Score of the returned text")
        self.monitor_score = scores(
            "monitor_score", "Score of a monitored answer", ("policy", "beside")
        )

    def add(self, answered: Result | Draft) -> None:
        """Count one completion."""
        if isinstance(answered, Draft):
            self.outcomes.labels("monitored").inc()
            self.generated.inc(answered.usage.completion_tokens)
            return
        best = answered.best
        outcome = "accepted" if best.accepted else "empty" if best.empty else "refused"
        self.outcomes.labels(outcome).inc()
        self.rounds.inc(best.rounds)
        self.evaluations.inc(best.evaluations)
        self.generated.inc(best.generated_tokens)
        self.before.observe(best.base.toxicity)
        self.after.observe(best.toxicity)

    def unread_language(self, text: str, scorer: ScorerWrapper) -> dict[str, str]:
        """Return and count the `language` of a text if the scorer does not read it, else {}."""
        if scorer.languages != ("en",):
            return {}
        language = language_of(text)  # at most half a millisecond; a thread costs nearly as much
        if language in ("", "en"):
            return {}
        self.languages.labels(language).inc()
        return {"language": language}

    def text(self) -> bytes:
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def is_changed(trial: Trial) -> bool:
    """Return whether an answer is given out that differs from the model's own."""
    other_calls = bool(trial.parts.tool_calls) and trial.chosen > 0
    return not trial.refused and (trial.text != trial.base.text or other_calls)


class MeasuredScorer(ScorerWrapper):
    """Counts and times the calls of a scorer.

    Policies share scorers, so only one thread at a time calls a slow scorer, unless it is
    `concurrent`. up: whether the call succeeded that ended last.
    """

    def __init__(self, scorer: Scorer, metrics: Metrics) -> None:
        super().__init__(scorer)
        self.metrics = metrics
        self._lock = threading.RLock()
        self.up = True
        if self._scorer.screen is not None:
            inner = MeasuredScorer(self._scorer.screen, metrics)
            # A scorer and its screen may have a member in common.
            inner._lock = self._lock
            self.screen = inner

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        with nullcontext() if self.quick or self.concurrent else self._lock:
            started = time.monotonic()
            try:
                answer = self._scorer.score_attributes(texts)
            except ScorerError as error:
                self.up = False
                self.metrics.failed.labels(type(error).__name__).inc()
                raise
            finally:
                self.metrics.scoring.observe(time.monotonic() - started)
                self.metrics.scored.inc(len(texts))
            self.up = True
            if FALLBACK in answer.attributes:
                self.metrics.fallbacks.inc(float(answer.attributes[FALLBACK].sum()))
            return answer

    @property
    def works(self) -> bool:
        """Whether the last calls of the scorer and of its screen succeeded."""
        return self.up and (not isinstance(self.screen, MeasuredScorer) or self.screen.works)

    def check(self) -> bool:
        """Return whether the scorer answers. Calls the scorer only if the last call failed.

        A busy scorer is not called, as health checks would delay the server's clients.
        """
        if not self.up and self._lock.acquire(blocking=False):
            try:
                with suppress(ScorerError):
                    self.score([HEALTH_TEXT])
            finally:
                self._lock.release()
        return self.up and (not isinstance(self.screen, MeasuredScorer) or self.screen.check())


class Budget:
    """Compares the share of a policy's answers that are altered with its budget.

    share: its `alter_at_most`; None: nothing is compared.
    """

    def __init__(self, policy: str, share: float | None, metrics: Metrics) -> None:
        self._policy, self._share, self._metrics = policy, share, metrics
        self._answers, self._altered, self._warned = 0, 0, False

    def count(self, *, altered: bool) -> None:
        """Count an answer, and warn once if more are altered than the budget allows."""
        if self._share is None:
            return
        self._answers += 1
        self._altered += altered
        e_value = evidence(self._altered, self._answers, self._share)
        self._metrics.alter_at_most.labels(self._policy).set(self._share)
        self._metrics.altered_evidence.labels(self._policy).set(e_value)
        if e_value >= _CONVINCING and not self._warned:
            self._warned = True
            share = self._altered / self._answers
            about = {"policy": self._policy, "alter_at_most": self._share, "altered": share}
            LOG.warning(json.dumps({"over_budget": {**about, "answers": self._answers}}))


def exporting() -> Any:
    """Return a provider that exports spans, configured by the variables OTEL_EXPORTER_OTLP_*.

    Raises MissingDependencyError without the extra `otel`.
    """
    sdk = require("opentelemetry.sdk.trace", "otel")
    export = require("opentelemetry.sdk.trace.export", "otel")
    otlp = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
    os.environ.setdefault("OTEL_SERVICE_NAME", "tide")
    provider = sdk.TracerProvider()
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
