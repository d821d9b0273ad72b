"""`fallback:FIRST,SECOND`: a second scorer decides while the first is down."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from tests.fakes import FakeScorer
from tests.scorers.wrappers.stand_ins import TwoSides
from tide.core.errors import (
    InputError,
    ScorerBrokenError,
    ScorerError,
    ScorerRefusedError,
    ScorerUnavailableError,
)
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.scorers import REGISTRY, load_scorer
from tide.scorers.base import Attributed, CallableScorer, Scorer, score_texts
from tide.scorers.wrappers import CachedScorer, FallbackScorer

TEXTS = ["calm", "rude"]


class Guard(TwoSides):
    """`TwoSides`, which raises `error` if it is set."""

    error: Exception | None = None

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        if self.error is not None:
            self.asked += 1
            raise self.error
        return super().score_attributes(texts)


def second() -> FakeScorer:
    """A scorer of 0.3 for calm and 0.7 for rude texts."""
    return FakeScorer(lambda text: 0.7 if "rude" in text else 0.3, name="second@1", threshold=0.6)


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    "error",
    [
        ScorerUnavailableError("down"),
        ScorerRefusedError("no"),
        ScorerBrokenError("broken"),
        TimeoutError("slow"),
        ConnectionError("lost"),
    ],
)
def test_second_scorer_decides_by_its_own_threshold(error: Exception) -> None:
    guard = Guard()
    scorer = FallbackScorer([guard, second()], clock=Clock())
    assert scorer.threshold == guard.threshold
    up = score_texts(scorer, TEXTS)
    assert up.values.tolist() == guard.score(TEXTS).tolist()
    assert up.attributes["fallback"].tolist() == [0.0, 0.0]
    assert up.known(0).keys() == {"threat", "insult", "fallback"}
    guard.error = error
    down = score_texts(scorer, TEXTS)
    assert down.values.tolist() == [0.0, 1.0]
    assert down.known(0) == {"fallback": 1.0}
    for threshold in (0.05, 0.5, 0.95):
        rule = Acceptance(Settings(toxicity_threshold=threshold, thresholds={"threat": 0.01}))
        assert list(map(rule.passes, down.rows())) == [True, False]


def test_other_errors_of_the_first_scorer_are_raised() -> None:
    guard = Guard()
    scorer = FallbackScorer([guard, second()])
    for error in (ScorerError("rejects this text"), TypeError("a mistake")):
        guard.error = error
        with pytest.raises(ScorerError):
            scorer.score(TEXTS)


def test_no_text_passes_if_both_scorers_fail() -> None:
    def dead(texts: list[str]) -> list[float]:
        raise ConnectionError("down")

    scorer = FallbackScorer([CallableScorer(dead), CallableScorer(dead)])
    with pytest.raises(ScorerUnavailableError):
        scorer.score(TEXTS)


def test_a_scorer_that_is_down_is_tried_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard, clock = Guard(), Clock()
    scorer = FallbackScorer([guard, second()], clock=clock)
    guard.error = ScorerUnavailableError("the guard is down")
    with caplog.at_level(logging.WARNING, "tide"):
        for _ in range(50):
            scorer.score(TEXTS)
        assert guard.asked == 1
        clock.seconds += 9.9
        scorer.score(TEXTS)
        assert guard.asked == 1
        clock.seconds += 0.2
        scorer.score(TEXTS)
        scorer.score(TEXTS)
        assert guard.asked == 2
        clock.seconds += 11
        guard.error = None
        assert scorer.score(TEXTS).tolist() == guard.score(TEXTS).tolist()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "the guard is down; second@1 decides until it answers again",
        "scorer two@1 answers again",
    ]


def test_one_call_tries_the_first_scorer_again() -> None:
    """Calls meanwhile do not wait for a scorer that hangs."""
    guard, clock = Guard(), Clock()
    guard.error = ScorerUnavailableError("down")
    scorer = FallbackScorer([guard, second()], clock=clock)
    scorer.score(TEXTS)
    clock.seconds += 11
    meanwhile: list[list[float]] = []

    class Trying(Guard):
        def score_attributes(self, texts: Sequence[str]) -> Attributed:
            meanwhile.append(scorer.score(TEXTS).tolist())
            return super().score_attributes(texts)

    scorer._scorer = Trying()
    assert score_texts(scorer, TEXTS).attributes["fallback"].tolist() == [0.0, 0.0]
    assert meanwhile == [[0.0, 1.0]]


def test_fallback_is_a_spec_and_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY._targets, "guard-of-test", Guard)
    scorer = load_scorer("fallback:guard-of-test,lexicon")
    assert scorer.name.startswith("fallback:two@1,lexicon")
    members: list[Scorer] = [Guard(), second()]
    with pytest.raises(InputError, match="fallback:cache:A,B"):
        CachedScorer(FallbackScorer(members))
    with pytest.raises(InputError, match="two scorers"):
        FallbackScorer(members[:1])
