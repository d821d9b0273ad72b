"""Limits of single attributes decide, beside the score, whether a text is accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.runtime.world import PROMPT, story
from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.scorers.base import Attributed, AttributedScorer, Scores, TextScore
from tide.scorers.wrappers import ConfirmScorer, MaxScorer, MeanScorer, WindowedScorer

LIMITS = {"threat": 0.1, "profanity": 0.9}


class Sides(AttributedScorer):
    """Bad sentences are threats; texts of the second sentence are profane; others are neither."""

    name, attributes, pace = "sides", ("threat", "profanity", "insult"), "sentence"

    def __init__(self, threat: float, profanity: float, highest_of: tuple[str, ...] = ()) -> None:
        self._threat, self._profanity, self.highest_of = threat, profanity, highest_of

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        threat = np.array([self._threat if "Bad" in text else 0.0 for text in texts])
        profanity = np.array([self._profanity if "Good1" in text else 0.0 for text in texts])
        columns = {"threat": threat, "profanity": profanity, "insult": np.zeros(len(texts))}
        return Attributed(np.maximum(threat, profanity), columns)


def acceptance(*highest_of: str, thresholds: Any = LIMITS, threshold: float = 0.5) -> Acceptance:
    settings = Settings(toxicity_threshold=threshold, thresholds=thresholds)
    return Acceptance(settings, highest_of)


def test_a_limit_beside_a_separate_score_adds_a_condition() -> None:
    rule = acceptance()
    assert rule.failed(TextScore(0.4, {"threat": 0.05, "profanity": 0.8})) == ()
    assert rule.failed(TextScore(0.4, {"threat": 0.1, "profanity": 0.8})) == ("threat",)
    assert rule.failed(TextScore(0.6, {"threat": 0.0, "profanity": 0.8})) == ("toxicity",)


def test_a_limit_replaces_the_highest_score_for_its_attribute() -> None:
    rule = acceptance("threat", "profanity", "insult")
    rude = {"threat": 0.0, "profanity": 0.8, "insult": 0.2}
    assert rule.passes(TextScore(0.8, rude))
    assert rule.failed(TextScore(0.95, {**rude, "profanity": 0.95})) == ("profanity",)
    assert rule.failed(TextScore(0.8, {**rude, "insult": 0.6})) == ("toxicity",)
    assert rule.failed(TextScore(0.8, {**rude, "threat": 0.3})) == ("threat",)
    # Without the other attributes, the score bounds them.
    assert rule.failed(TextScore(0.8, {"threat": 0.0, "profanity": 0.8})) == ("toxicity",)


@pytest.mark.parametrize("highest_of", [(), ("threat", "profanity")])
def test_an_unknown_attribute_fails_its_limit(highest_of: tuple[str, ...]) -> None:
    scores = Scores(
        np.array([0.0]),
        {"threat": np.array([math.nan]), "profanity": np.array([0.0])},
        np.array([False]),
    )
    rule = acceptance(*highest_of)
    assert rule.failed(scores.rows()[0]) == ("threat",)
    assert not rule.passes(scores.rows()[0])
    assert rule.passes(TextScore(0.0, empty=True))


def test_the_scaled_score_fails_exactly_at_a_limit() -> None:
    for threshold in (0.1, 0.2, 0.3, 0.5, 0.7):
        for limit in (0.05, 0.1, 0.3, 0.9, 1.0):
            rule = acceptance(thresholds={"threat": limit}, threshold=threshold)
            below = math.nextafter(limit, 0)
            assert not rule.passes(TextScore(0.0, {"threat": limit}))
            assert rule.passes(TextScore(0.0, {"threat": below}))
            assert 0 <= rule.scaled(TextScore(0.0, {"threat": below})) < threshold


def test_the_worst_text_is_the_one_that_fails() -> None:
    columns = {"threat": np.array([0.0, 0.2]), "profanity": np.array([0.7, 0.0])}
    scores = Scores(np.array([0.7, 0.2]), columns, np.zeros(2, dtype=np.bool_))
    assert acceptance("threat", "profanity").worst(scores).attributes["threat"] == 0.2


def threatening(sentence: int, changed: bool, words: Sequence[str | None]) -> bool:
    return sentence == 2 and not changed


@pytest.mark.parametrize("strategy", ["backtrack:pace=sentence,lag=0,least=0", "resample:n=4"])
def test_an_attribute_below_the_threshold_of_the_score_is_repaired(strategy: str) -> None:
    plain = story(threatening, Sides(0.2, 0.0), strategy=strategy)(PROMPT).best
    assert plain.accepted
    assert "Bad2" in plain.text
    assert plain.failed == []
    limited = story(threatening, Sides(0.2, 0.0), strategy=strategy, thresholds=LIMITS)
    trial = limited(PROMPT).best
    assert trial.trace[0].failed == ("threat",)
    assert trial.trace[0].toxicity == 0.2
    assert trial.failed == ["threat"]
    if strategy.startswith("backtrack"):
        assert trial.accepted
        assert "Bad2" not in trial.text
        assert trial.returned.failed == ()
        assert "Good0 w1 w2" in trial.text


@pytest.mark.parametrize(
    ("highest_of", "accepted"), [((), False), (("threat", "profanity", "insult"), True)]
)
def test_profanity_passes_by_its_own_limit_if_the_score_is_the_highest(
    highest_of: tuple[str, ...], accepted: bool
) -> None:
    scorer = Sides(0.0, 0.8, highest_of)
    trial = story(threatening, scorer, thresholds=LIMITS)(PROMPT).best
    assert (trial.accepted and len(trial.trace) == 1) is accepted
    assert trial.failed == ([] if accepted else ["toxicity"])


def test_thresholds_name_attributes_of_the_scorer() -> None:
    with pytest.raises(InputError, match="no attribute 'obscene'; it has threat, profanity, ins"):
        story(threatening, Sides(0.0, 0.0), thresholds={"obscene": 0.5})
    with pytest.raises(InputError, match="it has no attributes"):
        story(threatening, thresholds=LIMITS)
    detox = story(threatening, Sides(0.0, 0.0))
    with pytest.raises(InputError, match="thresholds"):
        detox(PROMPT, thresholds={"obscene": 0.5})


def test_thresholds_are_read_from_text() -> None:
    expected = {"threat": 0.1, "hate/threatening": 0.9}
    for value in ("threat=0.1, hate/threatening=0.9", ["threat=0.1", "hate/threatening=0.9"]):
        assert Settings(thresholds=value).thresholds == expected
    for wrong in ("threat", "=0.1", "threat=", "threat=2", "threat=nan", {"threat": 0.0}):
        with pytest.raises(ValueError, match="thresholds"):
            Settings(thresholds=wrong)


def test_wrappers_keep_what_the_score_is_the_highest_of() -> None:
    names = ("threat", "profanity", "insult")
    sides, part = Sides(0.0, 0.0, names), Sides(0.0, 0.0, ("threat",))
    assert WindowedScorer(sides).highest_of == names
    assert MaxScorer([sides, sides]).highest_of == names
    assert MaxScorer([part, part]).highest_of == ("threat",)
    for other in (MaxScorer([sides, part]), MaxScorer([sides, Sides(0.0, 0.0)])):
        assert other.highest_of == ()
    assert MeanScorer([sides, sides]).highest_of == ()
    assert ConfirmScorer([part, sides]).highest_of == sides.highest_of
