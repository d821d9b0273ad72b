"""`fallback:FIRST,SECOND`: a second scorer decides while the first is down."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tide.core.errors import SCORER_DOWN, InputError, ScorerBrokenError
from tide.core.sanitize import logger
from tide.plugins.options import checked
from tide.scorers.base import (
    FALLBACK,
    Attributed,
    Exchange,
    Scorer,
    ScorerWrapper,
    ask,
    attributes_of,
    highest_of,
    pace_of,
)

_LOG = logger(__name__)
# Seconds after a failure in which the first scorer is not called.
_PAUSE = 10.0


class FallbackScorer(ScorerWrapper):
    """Calls the second scorer while the first cannot be reached or refuses to answer.

    The second scorer decides by its own threshold, because its scores mean something else: a text
    scores 1 if it reaches this threshold, else 0. The attribute `fallback` is then 1, and the
    attributes of the first scorer are unknown.

    After a failure, the first scorer is not called for ten seconds; then one call tries it again.
    Other errors of the first scorer, such as a mistake in its code, are not caught. Threshold, pace
    and attributes are those of the first scorer. clock: returns seconds.
    """

    @checked
    def __init__(
        self, scorers: Sequence[Scorer], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if len(scorers) != 2:
            raise InputError(
                "scorer fallback: needs two scorers, as in fallback:perspective,pocket"
            )
        super().__init__(*scorers)
        first, self._second = scorers
        self.name = f"fallback:{first.name},{self._second.name}"
        self.fallback, self.pace = self._second.name, pace_of(first)
        self.attributes = (*attributes_of(first), FALLBACK)
        self.highest_of = highest_of(first)
        self._clock = clock
        self._retry_at: float | None = None  # while the first scorer is down

    def score_attributes(self, texts: Sequence[Exchange]) -> Attributed:
        if self._retry_at is not None:
            if self._clock() < self._retry_at:
                return self._verdicts(texts)
            self._retry_at = self._clock() + _PAUSE  # other calls do not wait for this one
        try:
            answer = ask(self._scorer, texts)
        except (*SCORER_DOWN, ScorerBrokenError) as error:
            if self._retry_at is None:
                _LOG.warning("%s; %s decides until it answers again", error, self._second.name)
            self._retry_at = self._clock() + _PAUSE
            return self._verdicts(texts)
        if self._retry_at is not None:
            _LOG.warning("scorer %s answers again", self._scorer.name)
            self._retry_at = None
        return Attributed(answer.values, {**answer.attributes, FALLBACK: np.zeros(len(texts))})

    def _verdicts(self, texts: Sequence[Exchange]) -> Attributed:
        """Return the verdicts of the second scorer as scores."""
        scores = ask(self._second, texts).values
        unknown = np.full(len(texts), np.nan)
        return Attributed(
            (scores >= self._second.threshold).astype(np.float64),
            {**dict.fromkeys(self.attributes, unknown), FALLBACK: np.ones(len(texts))},
        )
