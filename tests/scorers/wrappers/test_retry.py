from __future__ import annotations

import pytest

from tests.scorers.services.stand_ins import Clock
from tests.scorers.wrappers.stand_ins import Moody
from tide.core.errors import ScorerError, ScorerRefusedError, ScorerUnavailableError
from tide.scorers import CallableScorer
from tide.scorers.wrappers.retry import RetryScorer


@pytest.mark.parametrize(
    ("errors", "calls"), [([], 1), ([TimeoutError("late")], 2), ([ConnectionError()] * 2, 3)]
)
def test_retry_outlasts_an_outage(errors: list[Exception], calls: int) -> None:
    moody, clock = Moody(*errors), Clock()
    scorer = RetryScorer(CallableScorer(moody), 3, sleep=clock.sleep)
    assert scorer.score(["a text"]) == [0.25]
    assert moody.calls == calls


@pytest.mark.parametrize(
    ("error", "raised", "calls"),
    [
        (TimeoutError("late"), ScorerUnavailableError, 3),
        (ScorerUnavailableError("down"), ScorerUnavailableError, 3),
        (ScorerRefusedError("retired"), ScorerRefusedError, 1),
        (ValueError("wrong"), ScorerError, 1),
        (ScorerError("too long"), ScorerError, 1),
    ],
)
def test_retry_gives_up(error: Exception, raised: type[ScorerError], calls: int) -> None:
    moody = Moody(*[error] * 10)
    with pytest.raises(ScorerError) as caught:
        RetryScorer(CallableScorer(moody), 3, sleep=lambda seconds: None).score(["a text"])
    assert type(caught.value) is raised
    assert moody.calls == calls
