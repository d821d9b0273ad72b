"""`rate:NUMBER:SCORER`: so many texts a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from tide.plugins.options import checked
from tide.scorers.base import Attributed, Scorer
from tide.scorers.pace import Pace
from tide.scorers.wrappers.base import ScorerWrapper


class RateLimitedScorer(ScorerWrapper):
    """At most `per_second` texts a second."""

    @checked
    def __init__(
        self,
        scorer: Scorer,
        per_second: Annotated[float, Field(ge=1e-4, le=1e6)],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(scorer)
        self._pace = Pace(per_second, clock)
        self._batch = max(1, int(per_second))
        self._sleep = sleep

    def _asked(self, texts: Sequence[str]) -> Attributed:
        parts = []
        for start in range(0, len(texts), self._batch):
            batch = texts[start : start + self._batch]
            self._sleep(self._pace.reserve(len(batch)))
            parts.append(super()._asked(batch))
        none = np.zeros(0)
        return Attributed(
            np.concatenate([none, *(part.values for part in parts)]),
            {
                name: np.concatenate([none, *(part.attributes[name] for part in parts)])
                for name in self.attributes
            },
        )
