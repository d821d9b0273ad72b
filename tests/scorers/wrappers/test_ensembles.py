from __future__ import annotations

import pytest

from tide.core.errors import ScorerUnavailableError
from tide.scorers import CallableScorer, Scorer, load_scorer, score_texts
from tide.scorers.wrappers.ensembles import MaxScorer, MeanScorer


def constant(value: float, threshold: float) -> Scorer:
    scorer = CallableScorer(lambda texts: [value] * len(texts))
    scorer.name, scorer.threshold = f"constant@{value}", threshold
    return scorer


def test_max_and_mean() -> None:
    scorers = [constant(0.2, 0.5), constant(0.9, 0.3)]
    highest, mean = MaxScorer(scorers), MeanScorer(scorers)
    assert score_texts(highest, ["one text", "two texts"], "zero").values.tolist() == [0.9, 0.9]
    assert mean.score(["one text"]) == pytest.approx([0.55])
    assert highest.name == "max:constant@0.2,constant@0.9"
    assert (highest.threshold, mean.threshold) == (0.3, pytest.approx(0.4))
    assert highest.score([]).shape == mean.score([]).shape == (0,)


def test_by_name() -> None:
    pytest.importorskip("profanity_check")
    texts = ["Have a nice day", "you stupid idiot"]
    parts = [load_scorer(name).score(texts) for name in ("pocket", "profanity-check")]
    scorer = load_scorer("max:pocket,windows:9:profanity-check")
    assert scorer.score(texts).tolist() == [max(a, b) for a, b in zip(*parts, strict=True)]
    assert scorer.name.startswith("max:pocket@")
    scorer.close()


def test_one_member_down_is_no_score() -> None:
    def fail(texts: list[str]) -> list[float]:
        raise TimeoutError("late")

    for ensemble in (MaxScorer, MeanScorer):
        with pytest.raises(ScorerUnavailableError, match="late"):
            score_texts(ensemble([constant(0.1, 0.5), CallableScorer(fail)]), ["a text"], "zero")
