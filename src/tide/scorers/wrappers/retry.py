"""`retry:SCORER`: asks again while the scorer is unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import tenacity
from pydantic import Field

from tide.core.errors import ScorerUnavailableError
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Scorer
from tide.scorers.wrappers.base import ScorerWrapper


class RetryScorer(ScorerWrapper):
    """Asks again, up to `attempts` times in all, while the scorer is unavailable.

    Pauses double from `backoff` seconds to 60, with jitter. Any other error is raised at once.
    """

    @checked
    def __init__(
        self,
        scorer: Scorer,
        attempts: Annotated[int, Field(ge=1, le=1000)] = 4,
        *,
        backoff: Annotated[float, Field(ge=0, le=60)] = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(scorer)
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(ScorerUnavailableError),
            stop=tenacity.stop_after_attempt(attempts),
            wait=tenacity.wait_random_exponential(multiplier=backoff, max=60),
            sleep=sleep,
            reraise=True,
        )

    def _asked(self, texts: Sequence[str]) -> Attributed:
        return self._retrying(super()._asked, texts)
