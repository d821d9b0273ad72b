"""`rate:N:`, `retry:` and `breaker:` in front of any scorer; none of them changes a score."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import tenacity
from numpy.typing import NDArray

from tide.errors import InputError, ScorerRefused, ScorerUnavailable
from tide.scorers.base import Scorer, ask
from tide.scorers.pace import Pace


class _Guard:
    """A scorer that is called in another way; its name and scores stay what they are."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.name = scorer.name
        self.threshold = scorer.threshold

    def close(self) -> None:
        self._scorer.close()


class RateLimitedScorer(_Guard):
    """At most `per_second` texts a second."""

    def __init__(
        self,
        scorer: Scorer,
        per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(scorer)
        _check_number("rate", per_second, above=0)
        self._pace = Pace(per_second, clock)
        self._batch = max(1, int(per_second))
        self._sleep = sleep

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        scores: list[float] = []
        for start in range(0, len(texts), self._batch):
            batch = texts[start : start + self._batch]
            self._sleep(self._pace.reserve(len(batch)))
            scores += ask(self._scorer, batch)
        return np.array(scores, dtype=np.float64)


class RetryScorer(_Guard):
    """Asks again, up to `attempts` times in all, while the scorer is unavailable.

    Pauses double from `backoff` seconds to 60, with jitter. Any other error is raised at once.
    """

    def __init__(
        self,
        scorer: Scorer,
        attempts: float = 4,
        *,
        backoff: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(scorer)
        _check_number("retry", attempts, above=0, whole=True)
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(int(attempts)),
            wait=tenacity.wait_random_exponential(multiplier=backoff, max=60),
            sleep=sleep,
            reraise=True,
        )

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        return np.array(self._retrying(ask, self._scorer, texts), dtype=np.float64)


class CircuitBreaker(_Guard):
    """After `failures` calls in a row found the scorer unavailable, fails at once for `cooldown` s.

    Then one call is let through: if it works the circuit is closed again. For services that must
    not queue up behind a scorer that is down.
    """

    def __init__(
        self,
        scorer: Scorer,
        failures: float = 3,
        *,
        cooldown: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(scorer)
        _check_number("breaker", failures, above=0, whole=True)
        self._failures = int(failures)
        self._cooldown = cooldown
        self._clock = clock
        self._failed = 0
        self._open_until = -math.inf

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        left = self._open_until - self._clock()
        if left > 0:
            raise ScorerUnavailable(
                f"scorer {self.name}: was unavailable {self._failed} times in a row; "
                f"not asked again for {left:.0f} seconds"
            )
        try:
            scores = ask(self._scorer, texts)
        except ScorerUnavailable:
            self._failed += 1
            if self._failed >= self._failures:
                self._open_until = self._clock() + self._cooldown
            raise
        self._failed = 0
        return np.array(scores, dtype=np.float64)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, ScorerUnavailable) and not isinstance(error, ScorerRefused)


def _check_number(name: str, value: float, *, above: float, whole: bool = False) -> None:
    if not (math.isfinite(value) and value > above and (not whole or value == int(value))):
        kind = "whole number" if whole else "number"
        raise InputError(f"scorer {name}: expected a {kind} above {above:g} (got {value:g})")
