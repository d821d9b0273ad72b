"""Prometheus metrics: counts, times and scores, never any text."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tide.core.errors import ScorerError
from tide.core.results import Result, Trial
from tide.scorers.base import (
    FALLBACK,
    HEALTH_TEXT,
    Attributed,
    Exchange,
    Scorer,
    ScorerWrapper,
    languages_of,
    screen_of,
)
from tide.scorers.languages import language_of
from tide.server.monitor import Draft

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
_SCORES = tuple(i / 10 for i in range(11))


class Metrics:
    """The metrics of one server.

    With several processes (`tide serve --workers`), `text` sums them; of a budget, it has the
    process that is nearest to its end.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, namespace="tide", registry=self._registry)
        gauge = partial(
            Gauge, namespace="tide", registry=self._registry, multiprocess_mode="livesum"
        )
        highest = partial(gauge, multiprocess_mode="livemax")
        histogram = partial(Histogram, namespace="tide", registry=self._registry)
        self.requests = counter(
            "requests", "Requests by status; 499: the client disconnected", ["route", "status"]
        )
        self.seconds = histogram(
            "request_seconds", "Time of a request", ["route"], buckets=_SECONDS
        )
        self.answers = counter(
            "answers",
            "Requests for text by policy, name of the key, and status",
            ["policy", "key", "status"],
        )
        self.first_text = histogram(
            "first_text_seconds",
            "Time to the first text of an answer",
            ["policy"],
            buckets=_SECONDS,
        )
        self.engine_up = highest("engine_up", "1 if the model, or the server of a gateway, answers")
        self.reloads = counter("reloads", "Reloads of the policy file: done or failed", ["outcome"])
        self.in_flight = gauge("requests_in_flight", "Requests not yet fully answered")
        self.under_way = gauge("completions_under_way", "Completions running or queued")
        self.outcomes = counter("completions", "Completions by outcome", ["outcome"])
        self.changed = counter(
            "changed_completions",
            "Texts given out that differ from the model's own text; whole: its whole text failed; "
            "beginning: a beginning of it failed, so the rest was never written or scored",
            ["failed"],
        )
        self.rounds = counter("rounds", "Engine calls that the completions took part in")
        self.evaluations = counter("evaluations", "Texts generated and scored for completions")
        self.generated = counter("generated_tokens", "Tokens that the model wrote")
        self.before = histogram("toxicity_before", "Score of the model's own text", buckets=_SCORES)
        self.after = histogram("toxicity_after", "Score of the returned text", buckets=_SCORES)
        self.monitored = counter(
            "monitor_answers",
            "Monitored answers by outcome: changed or unchanged by enforcing, failed (no score) or "
            "skipped (too many were waiting)",
            ["policy", "outcome"],
        )
        self.monitor_score = histogram(
            "monitor_score",
            "Score of a monitored answer, or of its failing beginning",
            ["policy"],
            buckets=_SCORES,
        )
        self.shadowed = counter(
            "shadow_answers",
            "Sent answers by the outcome that a shadow policy would have had for them, as in "
            "tide_monitor_answers",
            ["policy", "shadow", "outcome"],
        )
        self.shadow_score = histogram(
            "shadow_score",
            "Score that a shadow policy gave a sent answer, or its failing beginning",
            ["policy", "shadow"],
            buckets=_SCORES,
        )
        self.of_policy = counter(
            "policy_answers",
            "Answers of an enforced policy: altered (also: withheld) or unaltered",
            ["policy", "outcome"],
        )
        self.alter_at_most = highest(
            "policy_alter_at_most", "Budget of altered answers", ["policy"]
        )
        self.altered_share = highest("policy_altered_share", "Share of altered answers", ["policy"])
        self.altered_evidence = highest(
            "policy_altered_evidence",
            "Evidence that more answers are altered than the budget allows; from 20 on, a warning",
            ["policy"],
        )
        self.guardrail = counter(
            "guardrail_answers",
            "Answers to litellm's guardrail: passed, blocked, failed (no score)",
            ["policy", "outcome"],
        )
        self.scored = counter("scorer_texts", "Texts sent to the scorer")
        self.failed = counter("scorer_errors", "Failed calls of the scorer", ["kind"])
        self.fallbacks = counter(
            "scorer_fallback_texts", "Texts that a second scorer decided, as the first was down"
        )
        self.languages = counter(
            "unread_answers",
            "Answers in a language that the scorer does not read; word lists help it",
            ["language"],
        )
        self.scoring = histogram("scorer_seconds", "Time of a scorer call", buckets=_SECONDS)

    def add(self, answered: Result | Draft) -> None:
        """Count one completion."""
        if isinstance(answered, Draft):
            self.outcomes.labels("monitored").inc()
            self.generated.inc(answered.generated_tokens)
            return
        best = answered.best
        outcome = "accepted" if best.accepted else "empty" if best.empty else "refused"
        self.outcomes.labels(outcome).inc()
        if is_changed(best):
            self.changed.labels("beginning" if best.base_partial else "whole").inc()
        self.rounds.inc(best.rounds)
        self.evaluations.inc(best.evaluations)
        self.generated.inc(best.generated_tokens)
        self.before.observe(best.base.toxicity)
        self.after.observe(best.toxicity)

    async def unread_language(self, text: str, scorer: Scorer) -> dict[str, str]:
        """Return and count the `language` of a text if the scorer does not read it, else {}."""
        if languages_of(scorer) != ("en",):
            return {}
        language = await asyncio.to_thread(language_of, text)
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
    `concurrent`. up: whether the last call succeeded.
    """

    def __init__(self, scorer: Scorer, metrics: Metrics) -> None:
        super().__init__(scorer)
        self.metrics = metrics
        self._lock = threading.RLock()
        self.up = True
        if (screen := screen_of(scorer)) is not None:
            inner = MeasuredScorer(screen, metrics)
            # A scorer and its screen may have a member in common.
            inner._lock = self._lock
            self.screen = inner

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        with nullcontext() if self.quick or self.concurrent else self._lock:
            started = time.monotonic()
            try:
                answer = super().score_attributes(texts)
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
