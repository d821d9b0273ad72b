from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeScorer
from tide.core.errors import InputError, ScorerUnavailableError
from tide.scorers import CallableScorer, Scorer, load_scorer, score_texts
from tide.scorers.base import is_quick, screen_of
from tide.scorers.wrappers import CachedScorer, ConfirmScorer, MaxScorer, MeanScorer


def constant(value: float, threshold: float) -> Scorer:
    scorer = CallableScorer(lambda texts: [value] * len(texts))
    scorer.name, scorer.threshold = f"constant@{value}", threshold
    return scorer


def test_max_and_mean() -> None:
    scorers = [constant(0.2, 0.5), constant(0.9, 0.3)]
    highest, mean = MaxScorer(scorers), MeanScorer(scorers)
    assert score_texts(highest, ["one text", "two texts"]).values.tolist() == [0.9, 0.9]
    assert mean.score(["one text"]) == pytest.approx([0.55])
    assert highest.name == "max:constant@0.2,constant@0.9"
    assert (highest.threshold, mean.threshold) == (0.3, pytest.approx(0.4))
    assert highest.score([]).shape == mean.score([]).shape == (0,)


def test_one_member_down_is_no_score() -> None:
    def fail(texts: list[str]) -> list[float]:
        raise TimeoutError("late")

    for ensemble in (MaxScorer, MeanScorer, ConfirmScorer):
        with pytest.raises(ScorerUnavailableError, match="late"):
            score_texts(ensemble([constant(0.1, 0.5), CallableScorer(fail)]), ["a text"])


def stated(factor: float = 1.0) -> FakeScorer:
    """A scorer of the number that a text states."""
    return FakeScorer(lambda text: float(text) * factor, name="stated", pace="whole")


def test_the_second_scores_and_the_first_is_its_screen() -> None:
    first, second = stated(), stated(0.25)
    first.pace, first.threshold, second.threshold = "word", 0.3, 0.4
    scorer = ConfirmScorer([first, second])
    assert score_texts(scorer, ["0.005", "0.8"]).values == pytest.approx([0.00125, 0.2])
    assert first.calls == []
    assert screen_of(scorer) is first
    assert (scorer.name, scorer.threshold, scorer.pace) == (
        "confirm:stated,stated", 0.4, "word",
    )  # fmt: skip
    higher = ConfirmScorer([stated(), stated(1.2)])
    assert higher.score(["0.8"]) == pytest.approx([0.96])  # the first does not lower it


def test_the_first_is_the_screen_in_an_ensemble_too() -> None:
    first, second = stated(), stated(0.25)
    scorer = MaxScorer([ConfirmScorer([first, second]), constant(0.3, 0.5)])
    screen = screen_of(scorer)
    assert screen is not None
    assert screen.score(["0.8", "0.2"]) == pytest.approx([0.8, 0.3])
    assert second.calls == []
    assert screen_of(MaxScorer([first, second])) is None


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("max:pocket", "max: needs several scorers, as in max:A,B"),
        ("confirm:pocket", "needs two scorers, as in confirm:pocket,exchange"),
        ("confirm:pocket,sentence,pocket", "needs two scorers, as in confirm:pocket,exchange"),
    ],
)
def test_members_are_two_or_more(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_scorer(spec)


def test_a_wrapper_is_quick_if_all_its_scorers_are_and_it_reads_no_file(tmp_path: Path) -> None:
    quick, slow = stated(), stated()
    quick.quick = True
    assert is_quick(MaxScorer([quick, quick]))
    assert not is_quick(MaxScorer([quick, slow]))
    confirm = ConfirmScorer([quick, slow])
    assert not is_quick(confirm)
    screen = screen_of(MaxScorer([confirm, quick]))
    assert screen is not None
    assert is_quick(screen)
    assert not is_quick(CachedScorer(quick, tmp_path / "scores"))
