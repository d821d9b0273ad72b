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
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.errors import ScorerError
from tide.scorers import Scorer, base, load_scorer, score_texts
from tide.scorers.languages import WordLists
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
    lambda: None, lambda: "0.5", lambda: b"0", lambda: 0.5 + 0j, lambda: Decimal("0.5"),
    lambda: Fraction(1, 2), lambda: [0.5], lambda: {}, set, lambda: np.datetime64(0, "s"),
    lambda: timedelta(0), lambda: np.ma.masked, lambda: np.str_("0"), lambda: np.complex64(0),
    object, Explodes, lambda: 10**400, lambda: -(10**5000), lambda: ..., lambda: math,
    lambda: float, lambda: (x for x in [0.5]),
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
DTYPES = ["f2", "f4", "f8", ">f8", ">f4", "g", "i1", "u8", ">i4"]
TENSORS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8]


SIZES = st.sampled_from([N] * 8 + [0, 1, N + 1])
SEQUENCES = st.sampled_from([list, tuple])


@st.composite
def lists(draw: st.DrawFn) -> Case:
    size, to = draw(SIZES), draw(SEQUENCES)
    numbers = draw(st.lists(PLAIN, min_size=size, max_size=size))
    return (lambda: to(numbers)), stated(numbers)


@st.composite
def values_for(draw: st.DrawFn, whole: bool) -> list[float]:
    size = draw(SIZES)
    values = draw(st.lists(st.one_of(UNIT, UNIT, ANY_FLOAT), min_size=size, max_size=size))
    return [float(value > 0.5) for value in values] if whole else values


@st.composite
def arrays(draw: st.DrawFn) -> Case:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    with np.errstate(over="ignore"):
        array = np.array(draw(values_for(dtype.kind != "f"))).astype(dtype)
    answer = draw(st.sampled_from([array, np.repeat(array, 2)[::2]]))
    return (lambda: answer), stated([float(x) for x in array])


@st.composite
def tensors(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from(TENSORS))
    values = draw(values_for(not dtype.is_floating_point))
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    ways: list[Callable[[], Any]] = [lambda: tensor, lambda: torch.stack([tensor] * 2, 1)[:, 0]]
    if dtype.is_floating_point:
        ways += [lambda: tensor.clone().requires_grad_(), lambda: torch.nn.Parameter(tensor)]
    return draw(st.sampled_from(ways)), stated(tensor.tolist())


CASES = st.one_of(lists(), arrays(), tensors())


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


@given(CASES, st.sampled_from(WRAPPERS))
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


def test_an_answer_that_changes_afterwards_changes_no_score() -> None:
    buffer = np.array([0.9] * N)
    scores = score_texts(Answering(lambda: buffer), TEXTS)
    buffer[:] = random.random()
    assert scores.values.tolist() == [0.9] * N


def test_scores_are_validated_once_for_each_scorer_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrappers pass on what was validated. The error names the scorer, not a wrapper."""
    validated: list[str] = []
    validate = base.validate_scores

    def counting(name: str, answer: Any, count: int, **options: Any) -> Any:
        validated.append(name)
        return validate(name, answer, count, **options)

    monkeypatch.setattr(base, "validate_scores", counting)
    values = [0.5] * N
    inner = WindowedScorer(MaxScorer([Answering(lambda: values), Answering(lambda: values)]))
    assert score_texts(WordLists(inner), TEXTS).values.tolist() == values
    assert validated == ["answering@1"] * 2
    values[1] = math.nan
    with pytest.raises(ScorerError, match="scorer answering@1: nan is not a score"):
        score_texts(WordLists(inner), TEXTS)
