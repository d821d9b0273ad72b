from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.scorers.test_answers import Unprintable
from tide.core.errors import ScorerError, ScorerUnavailableError
from tide.scorers import CallableScorer, Scorer, load_scorer, score_texts
from tide.scorers.base import PlainScorer, Scores, is_blank, is_nearly_empty, is_quick, score_groups
from tide.scorers.wrappers import MaxScorer

TEXTS = ["one text", "another", "a third one"]


def by_length(texts: list[str]) -> list[float]:
    return [len(text) / 100 for text in texts]


def test_a_function_is_a_scorer() -> None:
    scorer = load_scorer(by_length)
    assert isinstance(scorer, Scorer)
    assert scorer.name.startswith("callable:by_length@")
    assert score_texts(scorer, TEXTS).values == pytest.approx([0.08, 0.07, 0.11])
    assert load_scorer(scorer) is scorer


class Editing:
    """Scores by length, and then empties the texts in its list."""

    name, threshold = "editing", 0.5

    def score(self, texts: Any) -> Any:
        scores = by_length(texts)
        texts[:] = [""] * len(texts)
        return np.array(scores)

    def close(self) -> None:
        pass


def test_a_scorer_that_edits_its_list_changes_no_score() -> None:
    expected = score_texts(CallableScorer(by_length), TEXTS).values.tolist()
    texts = list(TEXTS)
    assert score_texts(Editing(), texts).values.tolist() == expected
    both = MaxScorer([Editing(), CallableScorer(by_length)])
    assert score_texts(both, texts).values.tolist() == expected
    assert texts == TEXTS


def test_a_group_that_a_scorer_cannot_take_fails_alone_and_both_ends_are_scores() -> None:
    def picky(texts: list[str]) -> list[float]:
        if "bad one" in texts:
            raise ValueError("not this one")
        return [float(text == "worst") for text in texts]

    good, bad, worst = score_groups(
        CallableScorer(picky), [["good"], ["fine", "bad one"], ["worst"]]
    )
    assert isinstance(good, Scores)
    assert isinstance(bad, ScorerError)
    assert isinstance(worst, Scores)
    assert [good.values.tolist(), worst.values.tolist()] == [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (TimeoutError("late"), ScorerUnavailableError, "late"),
        (ConnectionRefusedError("closed"), ScorerUnavailableError, "closed"),
        (KeyError("several\nlines"), ScorerError, "KeyError: 'several"),
        (SystemExit(0), ScorerError, "SystemExit"),
        (Unprintable(), ScorerError, "failed: Unprintable"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),  # Ctrl-C, in the main thread
    ],
)
def test_what_a_scorer_raises(error: BaseException, kind: type[BaseException], says: str) -> None:
    def fail(texts: list[str]) -> list[float]:
        raise error

    with pytest.raises(kind) as caught:
        score_texts(CallableScorer(fail), TEXTS)
    assert type(caught.value) is kind
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "empty"),
    [("", True), (" \n\t ", True), ("ab", True), (" a b ", True), ("abc", False), ("a b c", False),
     ("\u200b\u200b\u200bab", True), ("...", False)],
)  # fmt: skip
def test_empty_has_fewer_than_three_visible_characters(text: str, empty: bool) -> None:
    assert is_nearly_empty(text) is empty


@pytest.mark.parametrize(
    ("skip", "value"), [(is_nearly_empty, 0.0), (is_blank, 0.02), (None, 0.02)]
)
def test_skipped_texts_score_zero_unsent(skip: Any, value: float) -> None:
    sent: list[str] = []

    def spy(texts: list[str]) -> list[float]:
        sent.extend(texts)
        return by_length(texts)

    scores = score_texts(CallableScorer(spy), ["ab", "long enough"], skip)
    assert scores.values == pytest.approx([value, 0.11])
    assert scores.empty.tolist() == [skip is is_nearly_empty, False]
    assert ("ab" in sent) == (skip is not is_nearly_empty)


@pytest.mark.parametrize("kind", ["function", "method"])
def test_an_asynchronous_scorer_is_never_quick(kind: str) -> None:
    """It could wait for the engine that waits for it."""

    class Waits(PlainScorer):
        name, threshold, quick = "waits", 0.5, True

        async def score(self, texts: Any) -> Any:
            return [0.0 for _ in texts]

    async def waits(texts: Any) -> Any:
        return [0.0 for _ in texts]

    def answers(texts: Any) -> Any:
        return [0.0 for _ in texts]

    waits.quick = answers.quick = True  # type: ignore[attr-defined]
    assert not is_quick(load_scorer(waits) if kind == "function" else Waits())  # type: ignore[arg-type]
    assert is_quick(load_scorer(answers))
