"""Compares the share of a policy's answers that are altered with its budget `alter_at_most`."""

from __future__ import annotations

import json

from tide.evaluation.assessment import evidence
from tide.server.gate import LOG
from tide.server.metrics import Metrics

# With this evidence, a warning is false for at most one of twenty policies that keep their budget.
_CONVINCING = 20.0


class Budget:
    """Counts the answers of a policy. share: its `alter_at_most`; None: nothing is compared."""

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
        share = self._altered / self._answers
        self._metrics.alter_at_most.labels(self._policy).set(self._share)
        self._metrics.altered_share.labels(self._policy).set(share)
        self._metrics.altered_evidence.labels(self._policy).set(e_value)
        if e_value >= _CONVINCING and not self._warned:
            self._warned = True
            about = {"policy": self._policy, "alter_at_most": self._share, "altered": share}
            LOG.warning(json.dumps({"over_budget": {**about, "answers": self._answers}}))
