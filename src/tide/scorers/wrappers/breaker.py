"""`breaker:SCORER`: stops asking a scorer that is down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field

from tide.core.errors import SCORER_DOWN, ScorerUnavailableError
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Scorer
from tide.scorers.wrappers.base import ScorerWrapper


class CircuitBreaker(ScorerWrapper):
    """After `failures` calls in a row found the scorer unavailable, fails at once for `cooldown` s.

    Then one call is let through: if it works the circuit is closed again. For services that must
    not queue up for a scorer that is down.
    """

    @checked
    def __init__(
        self,
        scorer: Scorer,
        failures: Annotated[int, Field(ge=1, le=1000)] = 3,
        *,
        cooldown: Annotated[float, Field(ge=0, le=86_400)] = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(scorer)
        self._failures = failures
        self._cooldown = cooldown
        self._clock = clock
        self._failed = 0
        self._open_until = -math.inf

    def _asked(self, texts: Sequence[str]) -> Attributed:
        left = self._open_until - self._clock()
        if left > 0:
            raise ScorerUnavailableError(
                f"scorer {self.name}: was unavailable {self._failed} times in a row; "
                f"not asked again for {left:.0f} seconds"
            )
        try:
            answer = super()._asked(texts)
        except SCORER_DOWN:
            self._failed += 1
            if self._failed >= self._failures:
                self._open_until = self._clock() + self._cooldown
            raise
        self._failed = 0
        return answer
