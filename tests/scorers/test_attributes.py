"""Attributes of scores: they are validated, and wrappers and records keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.scorers.wrappers.stand_ins import TwoSides
from tide.core.errors import ScorerError
from tide.scorers import load_scorer, score_texts
from tide.scorers.base import Attributed, attributes_of
from tide.scorers.wrappers import MaxScorer, MeanScorer, WindowedScorer
from tide.server.scoring import perspective_name

TEXTS = ["The weather is fine", "Rain", "the people are kind " * 3]


def of(values: Any, **attributes: Any) -> Attributed:
    return Attributed(np.array(values), {k: np.array(v) for k, v in attributes.items()})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (of([0.5], threat=[0.1]), "differ from the declared attributes"),
        ([0.5], "differ from the declared attributes"),
        (of([1.5], threat=[0.1], insult=[0.1]), "1.5"),
        (of([np.nan], threat=[0.1], insult=[0.1]), "nan is not a score"),
        (of([0.5], threat=[np.inf], insult=[0.1]), r"\(threat\): inf"),
        (of([0.5], threat=[0.0, 0.0], insult=[0.1]), r"shape \(2,\), not \(1,\)"),
    ],
)
def test_what_is_no_attribute_is_an_error(answer: Any, message: str) -> None:
    scorer = TwoSides()
    scorer.score_attributes = lambda texts: answer  # type: ignore[method-assign]
    with pytest.raises(ScorerError, match=message):
        score_texts(scorer, ["a text"])


def test_an_attribute_may_be_unknown_or_missing() -> None:
    scorer = TwoSides()
    scorer.score_attributes = lambda texts: of([0.5], threat=[0.5], insult=[np.nan])  # type: ignore[method-assign]
    assert score_texts(scorer, ["a text"]).known(0) == {"threat": 0.5}
    pocket = load_scorer("windows:9:pocket")
    assert attributes_of(pocket) == ()
    assert score_texts(pocket, TEXTS).attributes == {}
    assert score_texts(scorer, []).attributes["threat"].shape == (0,)


def test_the_worst_window_s_attributes_count() -> None:
    scorer = WindowedScorer(TwoSides(), 2)
    assert attributes_of(scorer) == TwoSides.attributes
    text = "aaaa BBBB cccc dddddddddddddd ee"
    # Windows: "aaaa BBBB", "BBBB cccc", "cccc ddd...", "ddd... ee"
    scores = score_texts(scorer, [text, "ok"])
    assert scores.attributes["threat"] == pytest.approx([0.19, 0.02])
    assert scores.attributes["insult"] == pytest.approx([4 / 9, 0.0])
    assert scores.values == pytest.approx([4 / 9, 0.02])
    # A window of punctuation alone is empty and does not affect the other windows' attributes.
    assert score_texts(scorer, ["AB . . CD"]).attributes["insult"] == pytest.approx([0.5])


def test_an_ensemble_joins_the_attributes_of_those_that_have_them() -> None:
    both, threat_only = TwoSides(), TwoSides()
    threat_only.attributes = ("threat",)
    threat_only.score_attributes = lambda texts: of([0.5] * 3, threat=[0.5, 0.0, np.nan])  # type: ignore[method-assign]
    raw = both.score_attributes(TEXTS)
    most = score_texts(MaxScorer([load_scorer("pocket"), both, threat_only]), TEXTS)
    assert list(most.attributes) == ["threat", "insult"]
    assert most.values == pytest.approx(np.maximum(raw.values, 0.5))
    assert most.attributes["threat"][:2] == pytest.approx([0.5, raw.attributes["threat"][1]])
    assert np.isnan(most.attributes["threat"][2])  # the unknown value may be the maximum
    assert most.attributes["insult"] == pytest.approx(raw.attributes["insult"])
    mean = score_texts(MeanScorer([both, threat_only]), TEXTS)
    assert mean.attributes["threat"][1] == pytest.approx(raw.attributes["threat"][1] / 2)


def test_names_in_perspective_s_protocol() -> None:
    names = ("toxic", "severe_toxicity", "identity_hate", "sexual explicit", "threat")
    assert [perspective_name(name) for name in names] == [
        "TOXICITY", "SEVERE_TOXICITY", "IDENTITY_ATTACK", "SEXUALLY_EXPLICIT", "THREAT",
    ]  # fmt: skip
