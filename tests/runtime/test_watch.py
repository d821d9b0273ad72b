"""Scored beginnings of a text, text that may be given out, and the words blamed for failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.runtime.watch import Failure, Watch
from tide.scorers.base import TextScore
from tide.search.backtrack import BacktrackOptions

SENTENCE = [*[" word"] * 8, " end", "."]
SILENT = [*[" \u200b"] * 8, "\n"]


def watch(
    texts: Sequence[str] = (), pace: str = "word", *, screened: bool = False, **changes: Any
) -> Watch:
    """An answer of these texts. changes: settings, and the options `lag` and `at_once`."""
    options = {"lag": 0, "at_once": 1.0, "pace": pace}
    options |= {name: changes.pop(name) for name in ("lag", "at_once") if name in changes}
    settings = Settings(toxicity_threshold=0.5, **changes)
    answer = Watch(Acceptance(settings), BacktrackOptions(**options), screened)
    answer.texts += texts
    return answer


def words(count: int) -> list[str]:
    return [f" word{number}" for number in range(count)]


def positions(answer: Watch, *, ended: bool = False) -> list[int]:
    return [position for position, _ in answer.asks(ended=ended)]


def feed(answer: Watch, scores: list[float]) -> Failure | None:
    """Add words, of which each gets the next score; the last one ends the text."""
    left = list(scores)
    for number in range(len(scores)):
        answer.texts.append(f" word{number}")
        for position in positions(answer, ended=number == len(scores) - 1):
            if (failure := answer.judge(position, TextScore(left.pop(0)))) is not None:
                return failure
    return answer.finish()


def test_each_word_is_scored_once_it_is_whole() -> None:
    answer = watch()
    asked = []
    for text in (" un", "believ", "able", " but", " tr", "ue"):
        answer.texts.append(text)
        asked += answer.asks(ended=False)
    asked += answer.asks(ended=True)
    assert asked == [
        (3, [" unbelievable"]),
        (4, [" unbelievable but"]),
        (6, [" unbelievable but true"]),
    ]
    assert answer.asks(ended=True) == []


@pytest.mark.parametrize(
    ("texts", "pace", "while_written", "at_the_end"),
    [
        pytest.param(words(5), "word", [1, 2, 3, 4], [5], id="each word"),
        pytest.param(words(5), "2", [2, 4], [5], id="every two tokens"),
        pytest.param(words(5), "whole", [], [5], id="whole"),
        pytest.param([' "', " a", " b", " c"], "word", [3], [4], id="nothing said yet"),
        pytest.param([*SILENT, *SENTENCE, " l"], "sentence", [19], [20], id="silent sentence"),
        pytest.param([*SILENT, " a", "."], "sentence", [], [11], id="silent sentence at the end"),
        pytest.param([*SENTENCE, *SENTENCE[5:], " l"], "sentence", [10], [16], id="short sentence"),
        pytest.param(words(66), "sentence", [64], [66], id="long sentence"),
        pytest.param([*SENTENCE, " END", " l"], "sentence", [10], [12], id="after a sentence"),
        pytest.param([*SENTENCE[:-1], " END.", " l"], "sentence", [], [11], id="stop in sentence"),
        pytest.param([" well", " then", " END", " of"], "word", [1, 2], [4], id="stop string"),
    ],
)
def test_positions_that_are_scored(
    texts: list[str], pace: str, while_written: list[int], at_the_end: list[int]
) -> None:
    answer = watch(texts, pace, stop=("END NOW", "END. no"))
    assert positions(answer) == while_written
    ((position, windows),) = answer.asks(ended=True)
    assert ([position], windows[-1]) == (at_the_end, "".join(texts))


def test_suspicious_text_is_held_back_for_sixteen_tokens() -> None:
    answer = watch(words(20))
    held = []
    for position in positions(answer):
        assert answer.judge(position, TextScore(0.3)) is None
        held.append(position - answer.passed)
    assert held == [*range(1, 17), 0, 1, 2]


def test_a_failure_blames_the_word_with_which_the_score_rose() -> None:
    failure = feed(watch(), [0.1, 0.1, 0.3, 0.4, 0.9])
    assert failure == Failure(5, TextScore(0.9), 2, (3,))


def test_between_two_places_each_word_may_be_to_blame() -> None:
    answer = watch(words(7), "3")
    assert positions(answer) == [3, 6]
    assert answer.judge(3, TextScore(0.1)) is None
    assert answer.judge(6, TextScore(0.7)) == Failure(6, TextScore(0.7), 3, (4, 5, 6))


def test_a_text_may_still_turn_out_well_if_it_is_waited_for() -> None:
    failure = Failure(2, TextScore(0.6), 1, (2,))
    assert feed(watch(), [0.1, 0.6, 0.1, 0.1]) == failure
    answer = watch(lag=1)
    assert feed(answer, [0.1, 0.6, 0.1, 0.1]) is None
    assert answer.passed == 4
    assert feed(watch(lag=1), [0.1, 0.6, 0.7, 0.1]) == failure
    assert feed(watch(lag=2), [0.1, 0.6, 0.7, 0.1]) is None
    assert feed(watch(lag=1, at_once=0.6), [0.1, 0.6, 0.1]) == failure
    # At the end of the text there is nothing to wait for.
    assert feed(watch(lag=5), [0.1, 0.6]) == failure


def test_where_a_screen_objects_the_scorer_is_asked_now_and_then() -> None:
    answer = watch(words(12), screened=True)
    assert [position for position in range(1, 12) if answer.note_rejection(position)] == [1, 9]
    answer.drop_after(4)
    assert answer.note_rejection(5)


@pytest.mark.parametrize("pace", ["word", "20"])
def test_the_scorer_is_asked_at_the_end_of_each_sentence_and_of_the_text(pace: str) -> None:
    """At any pace of the screen."""
    texts = [*SENTENCE, " Yes", ".", *SENTENCE[1:], "\n", *[" word"] * 80]
    answer = watch(texts, pace, screened=True)
    assert [position for position in positions(answer) if answer.ends(position)] == [10, 21, 85]
    answer.texts += [" last"]
    *_, end = positions(answer, ended=True)
    assert answer.ends(end)
    assert end == len(answer.texts)


@pytest.mark.parametrize("screened", [True, False])
@pytest.mark.parametrize(
    ("at_once", "next_score", "fails_at", "passed"),
    [
        pytest.param(1.0, 0.1, None, 20, id="the-next-one-passes"),
        pytest.param(1.0, 0.7, 20, 0, id="the-next-one-fails"),
        pytest.param(0.6, 0.1, 10, 0, id="high-score"),
    ],
)
def test_a_sentence_that_fails_waits_for_the_next(
    screened: bool, at_once: float, next_score: float, fails_at: int | None, passed: int
) -> None:
    """Any of its words may be to blame."""
    pace = "word" if screened else "sentence"
    texts = [*SENTENCE, *SENTENCE, " So"]
    answer = watch(texts, pace, screened=screened, lag=4, at_once=at_once)
    scores = {10: 0.6, 20: next_score}
    failures = {}
    for position in positions(answer):
        if position not in scores:
            answer.note_acceptance(position)
        elif failure := answer.judge(position, TextScore(scores[position])):
            failures[position] = failure
            break
    failure = Failure(10, TextScore(0.6), 0, (*range(1, 9), 10))
    assert failures == ({} if fails_at is None else {fails_at: failure})
    assert answer.passed == passed


def test_attribute_that_reaches_its_own_high_limit_by_far_fails_at_once() -> None:
    """On the scale of the threshold, it is far below `at_once`."""
    answer = watch([*SENTENCE, " So"], "sentence", lag=4, at_once=0.5, thresholds={"threat": 0.8})
    assert positions(answer) == [10]
    failure = answer.judge(10, TextScore(0.0, {"threat": 0.9}))
    assert failure is not None
    assert failure.position == 10


def test_what_a_screen_objects_to_is_suspicious_and_blamed() -> None:
    answer = watch(words(14), screened=True, lag=3)
    answer.note_acceptance(1)
    assert answer.note_rejection(2)
    assert answer.judge(2, TextScore(0.1)) is None
    assert not answer.note_rejection(3)
    assert answer.passed == 0
    assert answer.note_rejection(10)
    assert answer.judge(10, TextScore(0.6)) is None
    asked = [answer.note_rejection(position) for position in (11, 12, 13)]
    assert asked == [False, False, True]  # the scorer is asked at the end of the lag
    assert answer.judge(13, TextScore(0.7)) == Failure(10, TextScore(0.6), 1, (2,))


def test_a_screen_that_still_objects_to_passed_text_blames_no_later_word() -> None:
    answer = watch([*SENTENCE, *[" more"] * 9], screened=True)
    *before, end = positions(answer)[:9]
    assert answer.ends(end)
    for position in before:
        answer.note_acceptance(position)
    assert answer.note_rejection(end)
    assert answer.judge(end, TextScore(0.1)) is None
    assert answer.passed == end
    assert not answer.note_rejection(end + 1)
    assert answer.note_rejection(end + 8)
    failure = answer.judge(end + 8, TextScore(0.6))
    assert failure == Failure(end + 8, TextScore(0.6), end, tuple(range(end + 1, end + 9)))


def test_a_word_that_failed_is_in_every_window_that_is_waited_for() -> None:
    answer = watch(words(9), lag=2, window_tokens=0)
    windows = [texts[0].split() for _, texts in answer.asks(ended=False)]
    assert windows[4:6] == [["word2", "word3", "word4"], ["word3", "word4", "word5"]]


texts = st.lists(
    st.sampled_from([" word", "part", " a", ",", " \u4e2d", "\u4e2d", "", "."]), max_size=40
)


@examples(30, 5000)
@given(
    texts,
    st.lists(st.floats(0, 1), min_size=80, max_size=80),
    st.sampled_from(["word", "3", "sentence", "whole"]),
    st.integers(0, 3),
    st.lists(st.integers(1, 9), min_size=41, max_size=41),
    st.booleans(),
)
def test_what_may_be_given_out_was_scored_and_passed(
    tokens: list[str], scores: list[float], pace: str, lag: int, sizes: list[int], late: bool
) -> None:
    """Decisions do not depend on how tokens arrive, or when the end is known."""

    def run(sizes: list[int], late: bool) -> tuple[Any, ...]:
        answer, judged, left = watch((), pace, lag=lag), dict[int, float](), list(tokens)
        failure, passed = None, [0]
        while failure is None:
            ended, size = not left, sizes.pop()
            answer.texts += left[:size]
            left = left[size:]
            ended = ended or not (left or late)
            for position, windows in answer.asks(ended=ended):
                assert windows == ["".join(tokens[:position])]
                judged[position] = scores[position]
                failure = answer.judge(position, TextScore(scores[position]))
                assert answer.passed >= passed[-1]
                passed.append(answer.passed)
                if failure is not None:
                    break
            if ended:
                failure = failure or answer.finish()
                break
        for position in {*passed, answer.passed} - {0}:
            assert judged[position] < 0.5
        if failure is None:
            assert answer.passed == len(tokens)
        else:
            assert answer.passed < failure.position or not tokens
            assert judged[failure.position] >= 0.5
            assert list(failure.words) == sorted({*failure.words})
            assert (
                answer.passed < failure.words[0] <= failure.words[-1] <= failure.position
                or not tokens
            )
        return failure, answer.passed

    assert run(list(sizes), late) == run([1] * 80, False)


def test_word_is_scored_before_the_next_token_if_it_is_known_to_have_ended() -> None:
    answer = watch(["Put"])
    assert answer.asks(ended=False) == []
    answer.ends_word = True
    assert answer.asks(ended=False) == [(1, ["Put"])]
    answer.texts.append(" the")
    assert answer.asks(ended=False) == [(2, ["Put the"])]
    answer.texts.append(" eggs")
    answer.ends_word = False
    assert answer.asks(ended=False) == []
    assert answer.asks(ended=True) == [(3, ["Put the eggs"])]


@pytest.mark.parametrize("screened", [False, True])
def test_scorer_with_a_window_reads_the_last_words_and_all_that_is_unread(screened: bool) -> None:
    answer = watch(words(40), screened=screened, window_tokens=10)
    answer.window = 4
    *_, (_, windows) = answer.asks(ended=True)
    assert len(windows) == (2 if screened else 1)  # the screen has no window
    if not screened:
        assert windows == ["".join(answer.texts[36:])]
    assert answer.windows(38, 40) == ["".join(answer.texts[36:])]
    assert answer.windows(30, 40) == ["".join(answer.texts[30:])]


@pytest.mark.parametrize(
    "scores",
    [
        pytest.param([0.4, 0.4, 0.4, 0.3, 0.0, 0.0, 0.0], id="the last whole text"),
        pytest.param([0.4, 0.4, 0.4, 0.0, 0.3, 0.0, 0.0], id="a window"),
        pytest.param([0.4, 0.4, 0.4, 0.0, 0.0, 0.0, 0.3], id="the last window"),
        # A later whole text failed, and then passed in the window of the next word.
        pytest.param([0.0, 0.0, 0.3, 0.9, 0.0, 0.0, 0.0], id="the last whole text that passed"),
    ],
)
def test_score_of_an_answer_is_its_worst_window_of_the_scorer(scores: list[float]) -> None:
    answer = watch(window_tokens=10, lag=4)
    answer.window = 4
    assert feed(answer, scores) is None
    assert answer.worst().value == 0.3
