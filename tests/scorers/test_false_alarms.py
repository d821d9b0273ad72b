from __future__ import annotations

import math

import pytest

from tide.core.errors import ScorerError
from tide.scorers import CallableScorer
from tide.scorers.assessment import beginnings, false_alarms


def scorer(**marks: float) -> CallableScorer:
    """Scores by the last word of a text."""
    return CallableScorer(lambda texts: [marks.get(text.split()[-1], 0.0) for text in texts])


def test_beginnings_end_at_words() -> None:
    assert beginnings(" a bc,  d ") == [" a", " a bc,"]
    assert beginnings("word") == beginnings("") == []
    assert len(beginnings("a " * 1000)) == 100


def test_wholes_and_beginnings_are_counted_apart() -> None:
    texts = ["a good day", "a bad day", "all bad", "bad bad bad", "fine"]
    found = false_alarms(scorer(bad=0.3), texts, 0.2)
    assert (found.texts, found.threshold) == (5, 0.2)
    assert found.whole == pytest.approx(0.4)
    assert found.beginnings == pytest.approx(1 / 3)
    assert false_alarms(scorer(bad=0.3), texts, 0.31).whole == 0.0


def test_without_texts_or_passing_ones_nothing_is_known() -> None:
    none = false_alarms(scorer(), [], 0.5)
    assert math.isnan(none.whole)
    assert math.isnan(none.beginnings)
    assert math.isnan(false_alarms(scorer(bad=1.0), ["bad"], 0.5).beginnings)


def test_a_text_without_a_score_is_left_out() -> None:
    def picky(texts: list[str]) -> list[float]:
        if any("odd" in text for text in texts):
            raise ScorerError("not this one")
        return [0.9] * len(texts)

    found = false_alarms(CallableScorer(picky), ["odd", "even"], 0.5)
    assert (found.texts, found.whole) == (1, 1.0)
