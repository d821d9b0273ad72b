"""Scorers with any answer: valid scores and attributes are accepted, all else is refused."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeScorer, attribute, hundredths
from tests.generated import examples
from tests.scorers.test_wrappers import TwoSides
from tests.worlds import PROMPTS, scripted_engine
from tide.core.chat import Chat
from tide.core.errors import ScorerError, ScorerUnavailableError
from tide.detoxifier.sync import Detoxifier
from tide.scorers import REGISTRY, load_scorer
from tide.scorers.base import (
    Attributed,
    Exchange,
    Scorer,
    adapted,
    close_scorer,
    is_blank,
    is_nearly_empty,
    score_texts,
)
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
PLAIN = st.one_of(
    st.integers(-2, 2), UNIT, st.floats(), UNIT.map(np.float64), UNIT.map(np.float32),
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


@st.composite
def lists(draw: st.DrawFn) -> Case:
    size, to = draw(st.sampled_from([N] * 8 + [0, 1, N + 1])), draw(st.sampled_from([list, tuple]))
    numbers = draw(st.lists(PLAIN, min_size=size, max_size=size))
    return (lambda: to(numbers)), stated(numbers)


def answering(answer: Callable[[], Any]) -> Scorer:
    """A third-party scorer that always returns `answer()`."""
    scorer = FakeScorer()
    scorer.score = lambda texts: answer()  # type: ignore[method-assign]
    return scorer


WRAPPERS: list[Callable[[Callable[[], Any]], Scorer]] = [
    lambda answer: load_scorer(lambda texts: answer()),
    answering,
    lambda answer: MaxScorer([answering(answer), answering(answer)]),
    lambda answer: MeanScorer([answering(answer), answering(answer)]),
    lambda answer: WindowedScorer(answering(answer)),
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
        score_texts(answering(answer), TEXTS)


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
    expected = [float(value) for value in answer.tolist()]
    assert score_texts(answering(lambda: answer), TEXTS).values.tolist() == expected


def test_an_answer_that_changes_afterwards_changes_no_score() -> None:
    buffer = np.array([0.9] * N)
    scores = score_texts(answering(lambda: buffer), TEXTS)
    buffer[:] = 0.1
    assert scores.values.tolist() == [0.9] * N


def test_a_scorer_that_edits_its_list_changes_no_score() -> None:
    def empties(texts: list[str]) -> list[float]:
        scores = list(map(hundredths, texts))
        texts[:] = [""] * len(texts)
        return scores

    expected = list(map(hundredths, TEXTS))
    texts = list(TEXTS)
    editing = load_scorer(empties)
    assert score_texts(editing, texts).values.tolist() == expected
    both = MaxScorer([editing, FakeScorer(hundredths)])
    assert score_texts(both, texts).values.tolist() == expected
    assert texts == TEXTS


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (TimeoutError("late"), ScorerUnavailableError, "late"),
        (ConnectionRefusedError("closed"), ScorerUnavailableError, "closed"),
        (KeyError("several\nlines"), ScorerError, "KeyError: 'several"),
        (SystemExit(0), ScorerError, "SystemExit"),
        (Unprintable(), ScorerError, "failed: Unprintable"),
        (asyncio.CancelledError(), ScorerError, "ancelled"),
        (KeyboardInterrupt(), ScorerError, ""),
    ],
)
def test_what_a_scorer_raises(
    error: BaseException, kind: type[ScorerError], says: str, waits: bool
) -> None:
    def fail_if_rude(texts: list[str]) -> list[float]:
        if "rude" in texts:
            raise error
        return [0.25 for _ in texts]

    async def fail_later(texts: list[str]) -> list[float]:
        return fail_if_rude(texts)

    expected: type[BaseException] = kind
    if isinstance(error, KeyboardInterrupt) and not waits:
        expected = KeyboardInterrupt  # Ctrl-C in the main thread
    scorer = load_scorer(fail_later if waits else fail_if_rude)
    with pytest.raises(expected) as caught:
        score_texts(scorer, ["rude"])
    assert type(caught.value) is expected
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert score_texts(scorer, TEXTS).values.tolist() == [0.25] * 3
    scorer.close()


@pytest.mark.parametrize(
    ("text", "empty"),
    [("", True), (" \n\t ", True), ("ab", True), (" a b ", True), ("abc", False), ("a b c", False),
     ("\u200b\u200b\u200bab", True), ("...", False), ("\U000e0061", False)],
)  # fmt: skip
def test_empty_has_fewer_than_three_visible_characters(text: str, empty: bool) -> None:
    assert is_nearly_empty(text) is empty


@pytest.mark.parametrize(
    ("skip", "value"), [(is_nearly_empty, 0.0), (is_blank, 0.02), (None, 0.02)]
)
def test_skipped_texts_score_zero_unsent(skip: Any, value: float) -> None:
    scorer = FakeScorer(hundredths)
    scores = score_texts(scorer, [Exchange("a context", "ab"), "long enough"], skip)
    assert scores.values == pytest.approx([value, 0.11])
    assert [score.unscored for score in scores] == [skip is is_nearly_empty, False]
    assert ("ab" in scorer.texts) == (skip is not is_nearly_empty)


def test_an_asynchronous_scorer_and_one_of_exchanges_are_never_quick() -> None:
    """The one could wait for the engine that waits for it, and a conversation may be long."""

    async def waits(texts: Any) -> Any:
        return [0.0 for _ in texts]

    def answers(texts: Any) -> Any:
        return [0.0 for _ in texts]

    waits.quick = answers.quick = True  # type: ignore[attr-defined]
    assert not adapted(load_scorer(waits)).quick
    assert adapted(load_scorer(answers)).quick
    assert not adapted(FakeScorer(reads="exchange", quick=True)).quick


def test_function_reads_exchanges_if_it_says_so() -> None:
    def agrees(exchanges: list[Exchange]) -> list[float]:
        return [float("agree" in str(exchange.context)) for exchange in exchanges]

    agrees.reads = "exchange"  # type: ignore[attr-defined]
    pairs = [Exchange(Chat.said("Do you agree?"), "Yes."), Exchange("a question", "Yes.")]
    assert score_texts(load_scorer(agrees), pairs).values.tolist() == [1.0, 0.0]


def test_scorer_with_a_misspelt_reads_is_refused() -> None:
    """As a scorer of texts it would get no prompts."""
    with pytest.raises(ScorerError, match=r"reads must be text or exchange \(got 'exchanges'\)"):
        Detoxifier(scripted_engine(), scorer=FakeScorer(reads="exchanges"))


def test_hidden_text_in_tool_result_is_an_error() -> None:
    hidden = "\\\\u0041" * 2
    for _ in range(5):
        hidden = hidden.replace("\\", "\\\\")
    messages = [
        {"role": "user", "content": "Look it up."},
        {"role": "tool", "content": hidden, "tool_call_id": "1"},
    ]
    with pytest.raises(ScorerError, match="cannot be read"):
        score_texts(FakeScorer(), [Exchange(Chat.of(messages), "")])


class Client:
    """A scorer that holds a connection, which only its own event loop can close."""

    name, threshold = "client@1", 0.5

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def score(self, texts: Sequence[str]) -> list[float]:
        self.loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return list(map(hundredths, texts))

    async def close(self) -> None:
        self.loops.append(asyncio.get_running_loop())


def test_all_calls_are_awaited_in_one_loop() -> None:
    client = Client()
    assert load_scorer(client) is client
    callers = [threading.Thread(target=score_texts, args=(client, TEXTS)) for _ in "abc"]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert score_texts(MaxScorer([client, client]), TEXTS).values[0] == 0.08

    async def inside(client: Any) -> Any:
        return score_texts(client, TEXTS).values

    assert asyncio.run(inside(client))[1] == 0.07
    assert len(set(client.loops)) == 1
    thread = next(thread for thread in threading.enumerate() if thread.name == "tide Client")
    del client, callers
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_asynchronous_close_runs_in_the_loop_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in ("client", "confirm:pocket,windows:client"):
        client = Client()
        monkeypatch.setitem(REGISTRY._targets, "client", lambda client=client: client)
        with Detoxifier(scripted_engine(), scorer=spec) as detox:
            detox(PROMPTS[0])
        assert len(client.loops) > 1
        assert len(set(client.loops)) == 1


def test_a_close_that_fails_is_one_line() -> None:
    def fail() -> None:
        raise OSError("the socket\nis gone")

    with pytest.raises(ScorerError, match=r"^scorer fake failed: OSError: the socket is gone$"):
        close_scorer(FakeScorer(close=fail))


SENTENCES = ["The weather is fine", "Rain", "the people are kind " * 3]


def of(values: Any, **attributes: Any) -> Attributed:
    return Attributed(np.array(values), {k: np.array(v) for k, v in attributes.items()})


def attributed(answer: Any, *names: str) -> FakeScorer:
    """A scorer of these attributes with one answer."""
    return FakeScorer(attributes=names, score_attributes=lambda texts: answer)


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
    with pytest.raises(ScorerError, match=message):
        score_texts(attributed(answer, "threat", "insult"), ["a text"])


def test_an_attribute_may_be_unknown_or_missing() -> None:
    scorer = attributed(of([0.5], threat=[0.5], insult=[np.nan]), "threat", "insult")
    assert score_texts(scorer, ["a text"])[0].attributes == {"threat": 0.5}
    pocket = load_scorer("windows:pocket")
    assert adapted(pocket).attributes == ()
    assert [score.attributes for score in score_texts(pocket, SENTENCES)] == [{}] * 3
    assert score_texts(scorer, []) == []


def test_the_worst_window_s_attributes_count() -> None:
    scorer = WindowedScorer(TwoSides(), 2)
    assert (scorer.name, scorer.attributes) == ("windows:2:two@1", TwoSides.attributes)
    text = "aaaa BBBB cccc dddddddddddddd ee"
    # Windows: "aaaa BBBB", "BBBB cccc", "cccc ddd...", "ddd... ee"
    scores = score_texts(scorer, [text, "ok"])
    assert attribute(scores, "threat") == pytest.approx([0.19, 0.02])
    assert attribute(scores, "insult") == pytest.approx([4 / 9, 0.0])
    assert scores.values == pytest.approx([4 / 9, 0.02])
    # A window of punctuation alone is empty and does not affect the other windows' attributes.
    assert attribute(score_texts(scorer, ["AB . . CD"]), "insult") == [0.5]


def test_an_ensemble_joins_the_attributes_of_those_that_have_them() -> None:
    both = TwoSides()
    threat_only = attributed(of([0.5] * 3, threat=[0.5, 0.0, np.nan]), "threat")
    raw = both.score_attributes(SENTENCES)
    most = score_texts(MaxScorer([load_scorer("pocket"), both, threat_only]), SENTENCES)
    assert most.values == pytest.approx(np.maximum(raw.values, 0.5))
    threat = attribute(most, "threat")
    assert threat[:2] == pytest.approx([0.5, raw.attributes["threat"][1]])
    assert np.isnan(threat[2])  # the unknown value may be the maximum
    assert attribute(most, "insult") == pytest.approx(raw.attributes["insult"])
    mean = score_texts(MeanScorer([both, threat_only]), SENTENCES)
    assert attribute(mean, "threat")[1] == pytest.approx(raw.attributes["threat"][1] / 2)
