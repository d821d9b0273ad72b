"""Scorers with any answer: valid scores are accepted, and everything else is refused.

The generators return the expected scores with each answer, or None if it is not a list of scores.
They do not use the code under test.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.errors import ScorerError
from tide.scorers import Scorer, load_scorer, score_texts
from tide.scorers.wrappers import MaxScorer, MeanScorer, WindowedScorer

TEXTS = ["one text", "another", "a third one"]
N = len(TEXTS)
Case = tuple[Callable[[], Any], list[float] | None]


class Explodes:
    def __getattribute__(self, name: str) -> Any:
        raise Unprintable


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


def stated(values: Sequence[Any]) -> list[float] | None:
    """The numbers as floats, or None unless there is one in [0, 1] for each text."""
    numbers = [float(value) for value in values]
    return numbers if len(numbers) == N and all(0 <= x <= 1 for x in numbers) else None


UNIT = st.floats(0, 1)
ANY_FLOAT = st.floats() | UNIT
PLAIN = st.one_of(
    st.integers(-2, 2), UNIT, ANY_FLOAT, UNIT.map(np.float64), UNIT.map(np.float32),
    UNIT.map(np.float16), UNIT.map(np.longdouble), st.integers(0, 1).map(np.int8),
    st.integers(0, 1).map(np.uint64),
)  # fmt: skip
# Each of these looks like a number or converts to one, but is not a number.
STRANGE: list[Callable[[], Any]] = [
    lambda: None, lambda: "0.5", lambda: 0.5 + 0j, lambda: Decimal("0.5"), lambda: [0.5], set,
    lambda: timedelta(0), lambda: np.ma.masked, Explodes, lambda: 10**400, lambda: float,
]  # fmt: skip
WHOLE: list[Callable[[], Any]] = [
    lambda: dict.fromkeys(range(N), 0.5), lambda: (0.5 for _ in range(N)), lambda: "000",
    lambda: bytes(N), lambda: {0.1, 0.2, 0.3}, lambda: range(N), lambda: iter([0.1] * N),
    lambda: [True] * N, lambda: np.array([0.1] * N, dtype=object), lambda: np.array(["0.5"] * N),
    lambda: np.zeros(N, dtype=bool), lambda: np.zeros(N, dtype=complex),
    lambda: np.zeros(N, dtype="M8[s]"), lambda: np.zeros(N, dtype="m8[s]"),
    lambda: np.zeros(N, dtype=[("score", float)]),
    lambda: np.ma.array([0.1] * N, mask=[False, False, True]), lambda: np.ma.array([0.1] * N),
    lambda: np.ma.masked, lambda: np.zeros((1, N)).view(np.matrix),
    lambda: np.zeros((N, 1)), lambda: np.zeros((1, N)), lambda: np.array(0.5),
    lambda: torch.zeros(N, dtype=torch.bool), lambda: torch.zeros(N, dtype=torch.complex64),
    lambda: torch.zeros(N, device="meta"), lambda: torch.zeros(N).to_sparse(),
    lambda: torch.zeros(N, 1), lambda: torch.zeros(()), lambda: torch.full((N,), math.nan),
    lambda: torch.full((N,), -0.5, dtype=torch.bfloat16), lambda: [[0.1] * N] * N,
]  # fmt: skip
SIZES = st.sampled_from([N] * 8 + [0, 1, N + 1])
SEQUENCES = st.sampled_from([list, tuple])


@st.composite
def lists(draw: st.DrawFn) -> Case:
    size, to = draw(SIZES), draw(SEQUENCES)
    numbers = draw(st.lists(PLAIN, min_size=size, max_size=size))
    return (lambda: to(numbers)), stated(numbers)


class Answering:
    """A third-party scorer that always returns `answer()`."""

    name, threshold = "answering@1", 0.5

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def score(self, texts: Sequence[str]) -> Any:
        return self._answer()

    def close(self) -> None:
        pass


WRAPPERS: list[Callable[[Callable[[], Any]], Scorer]] = [
    lambda answer: load_scorer(lambda texts: answer()),
    Answering,
    lambda answer: MaxScorer([Answering(answer), Answering(answer)]),
    lambda answer: MeanScorer([Answering(answer), Answering(answer)]),
    lambda answer: WindowedScorer(Answering(answer)),
]


@given(lists(), st.sampled_from(WRAPPERS))
@pytest.mark.attack
@examples(40, 10_000)
def test_only_scores_are_scores(case: Case, around: Callable[[Callable[[], Any]], Scorer]) -> None:
    answer, expected = case
    scorer = around(answer)
    try:
        values = score_texts(scorer, TEXTS).values
    except ScorerError as error:
        refusal = str(error)
        assert expected is None
        assert len(refusal.splitlines()) == 1
        assert len(refusal) < 1000
    else:
        assert values.dtype == np.float64
        assert values.tolist() == expected
    finally:
        scorer.close()


@pytest.mark.parametrize(
    "answer",
    [*((lambda one=one: [0.5, one(), 0.5]) for one in STRANGE), *STRANGE, *WHOLE],
)
def test_each_strange_answer_is_refused_for_what_it_is(answer: Callable[[], Any]) -> None:
    with pytest.raises(
        ScorerError, match=r"not a list of numbers|the answer has shape|not a score|failed: Unpr"
    ):
        score_texts(Answering(answer), TEXTS)


@pytest.mark.parametrize(
    "answer",
    [
        np.array([0.1, 0.5, 1.0], dtype="f2"),
        np.array([0.1, 0.5, 1.0], dtype=">f4"),
        np.repeat(np.array([0.1, 0.5, 1.0]), 2)[::2],
        np.array([0, 1, 1], dtype="u8"),
        torch.tensor([0.1, 0.5, 1.0], dtype=torch.bfloat16),
        torch.nn.Parameter(torch.tensor([0.1, 0.5, 1.0])),
        torch.tensor([0, 1, 1], dtype=torch.uint8),
    ],
)
def test_numbers_of_every_type_are_scores(answer: Any) -> None:
    expected = [float(value) for value in answer]
    assert score_texts(Answering(lambda: answer), TEXTS).values.tolist() == expected


def test_an_answer_that_changes_afterwards_changes_no_score() -> None:
    buffer = np.array([0.9] * N)
    scores = score_texts(Answering(lambda: buffer), TEXTS)
    buffer[:] = random.random()
    assert scores.values.tolist() == [0.9] * N
