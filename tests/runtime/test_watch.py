"""Scored beginnings of a text, text that may be given out, and the words blamed for failures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.settings import Settings
from tide.runtime.acceptance import Acceptance
from tide.runtime.watch import BacktrackOptions, Failure, Watch
from tide.scorers.base import TextScore

_AT_ONCE = {"lag": 0, "at_once": 1.0}


def watch(pace: str = "word", **changes: Any) -> Watch:
    settings = {"toxicity_threshold": 0.5, "stop": (), **changes}
    options = {name: settings.pop(name) for name in ("lag", "at_once") if name in settings}
    acceptance = Acceptance(Settings(**settings))
    return Watch(acceptance, BacktrackOptions(pace=pace, **{**_AT_ONCE, **options}))


def scored(value: float) -> TextScore:
    return TextScore(value)


def feed(answer: Watch, scores: list[float]) -> Failure | None:
    """Add words, of which each gets the next score; the last one ends the text."""
    left = list(scores)
    for number in range(len(scores)):
        answer.texts.append(f" word{number}")
        for position, _ in answer.asks(ended=number == len(scores) - 1):
            if (failure := answer.judge(position, scored(left.pop(0)))) is not None:
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


def test_a_beginning_that_says_nothing_is_not_scored() -> None:
    answer = watch()
    answer.texts += [' "', " a", " b", " c"]
    assert [position for position, _ in answer.asks(ended=False)] == [3]


def test_a_sentence_that_says_nothing_is_scored_with_what_follows() -> None:
    answer = watch("sentence")
    answer.texts += [*[" \u200b"] * 8, "\n", " a", " bcd", *" efghijk", "\n", " l"]
    assert [position for position, _ in answer.asks(ended=False)] == [20]
    answer = watch("sentence")
    answer.texts += [*[" \u200b"] * 8, "\n", " a", "."]
    assert answer.asks(ended=False) == []
    assert answer.asks(ended=True) == [(11, ["".join(answer.texts)])]


@pytest.mark.parametrize(
    ("pace", "positions"), [("word", [1, 2, 3, 4]), ("2", [2, 4]), ("whole", [])]
)
def test_the_pace_says_how_often(pace: str, positions: list[int]) -> None:
    answer = watch(pace)
    answer.texts += [" red", " green", " blue", " grey", " black"]
    assert [position for position, _ in answer.asks(ended=False)] == positions
    assert [position for position, _ in answer.asks(ended=True)] == [5]


def test_a_stop_string_that_may_have_begun_is_not_scored() -> None:
    answer = watch(stop=("END NOW",))
    answer.texts += [" well", " then", " END", " of"]
    assert [position for position, _ in answer.asks(ended=False)] == [1, 2]


def test_what_passes_may_be_given_out_and_what_is_suspicious_waits() -> None:
    answer = watch()
    assert feed(answer, [0.1, 0.1]) is None
    assert answer.passed == 2
    answer.texts += [" third", " fourth"]
    ((position, _),) = answer.asks(ended=False)
    assert answer.judge(position, scored(0.4)) is None
    assert answer.passed == 2


def test_suspicious_text_is_held_back_for_sixteen_tokens() -> None:
    answer = watch()
    answer.texts += [f" word{number}" for number in range(20)]
    held = []
    for position, _ in answer.asks(ended=False):
        assert answer.judge(position, scored(0.3)) is None
        held.append(position - answer.passed)
    assert held == [*range(1, 17), 0, 1, 2]


def test_a_failure_blames_the_word_with_which_the_score_rose() -> None:
    failure = feed(watch(), [0.1, 0.1, 0.3, 0.4, 0.9])
    assert failure == Failure(5, scored(0.9), 2, (3,))


def test_between_two_places_each_word_may_be_to_blame() -> None:
    answer = watch("3")
    answer.texts += [f" word{i}" for i in range(7)]
    first, second = answer.asks(ended=False)
    assert answer.judge(first[0], scored(0.1)) is None
    assert answer.judge(second[0], scored(0.7)) == Failure(6, scored(0.7), 3, (4, 5, 6))


def test_a_text_may_still_turn_out_well_if_it_is_waited_for() -> None:
    assert feed(watch(), [0.1, 0.6, 0.1, 0.1]) is not None
    answer = watch(lag=1)
    assert feed(answer, [0.1, 0.6, 0.1, 0.1]) is None
    assert answer.passed == 4
    failure = feed(watch(lag=1), [0.1, 0.6, 0.7, 0.1])
    assert failure == Failure(2, scored(0.6), 1, (2,))
    assert feed(watch(lag=1, at_once=0.6), [0.1, 0.6, 0.1]) == Failure(2, scored(0.6), 1, (2,))
    # At the end of the text there is nothing to wait for.
    assert feed(watch(lag=5), [0.1, 0.6]) == Failure(2, scored(0.6), 1, (2,))


def screened(**changes: Any) -> Watch:
    answer = watch(**changes)
    answer.screened = True
    return answer


def test_where_a_screen_objects_the_scorer_is_asked_now_and_then() -> None:
    answer = screened()
    answer.texts += [f" word{i}" for i in range(12)]
    assert [position for position in range(1, 12) if answer.note_rejection(position)] == [1, 9]
    answer.drop_after(4)
    assert answer.note_rejection(5)


def test_the_scorer_is_asked_at_the_end_of_each_sentence_and_of_the_text() -> None:
    answer = screened()
    sentence = [*[" word"] * 7, " end", "."]
    answer.texts += [*sentence, " Yes", ".", *sentence, "\n", *[" word"] * 80]
    positions = [position for position, _ in answer.asks(ended=False)]
    assert [position for position in positions if answer.ends(position)] == [9, 20, 84]
    answer.texts += [" last"]
    *_, (end, _) = answer.asks(ended=True)
    assert answer.ends(end)
    assert end == len(answer.texts)


@pytest.mark.parametrize("pace", ["word", "20"])
def test_a_sentence_ends_at_the_same_place_at_any_pace_of_the_screen(pace: str) -> None:
    answer = screened(pace=pace)
    answer.texts += [*[" word"] * 9, " end", ".", " So", " on"]
    assert [position for position, _ in answer.asks(ended=False) if answer.ends(position)] == [11]


def test_text_that_the_screen_accepts_has_not_passed() -> None:
    answer = screened()
    answer.texts += [*[" word"] * 8, " end", ".", " So"]
    for position, _ in answer.asks(ended=False)[:-1]:
        answer.note_acceptance(position)
    assert answer.passed == 0
    assert answer.judge(10, scored(0.1)) is None
    assert answer.passed == 10


def test_a_sentence_that_fails_is_not_waited_for() -> None:
    """A later sentence does not excuse it, and any of its words may be to blame."""
    answer = screened(lag=4)
    answer.texts += [*[" word"] * 8, " end", ".", " So"]
    positions = [position for position, _ in answer.asks(ended=False)]
    for position in positions[:-1]:
        answer.note_acceptance(position)
    failure = answer.judge(positions[-1], scored(0.6))
    assert failure == Failure(10, scored(0.6), 0, (*range(1, 9), 10))
    answer = watch("sentence", lag=4)
    answer.texts += [*[" word"] * 8, " end", ".", " So"]
    ((position, _),) = answer.asks(ended=False)
    assert answer.judge(position, scored(0.6)) == Failure(10, scored(0.6), 0, (*range(1, 9), 10))


def test_what_a_screen_objects_to_is_suspicious_and_blamed() -> None:
    answer = screened(lag=3)
    answer.texts += [f" word{i}" for i in range(14)]
    answer.note_acceptance(1)
    assert answer.note_rejection(2)
    assert answer.judge(2, scored(0.1)) is None
    assert not answer.note_rejection(3)
    assert answer.passed == 0
    assert answer.note_rejection(10)
    assert answer.judge(10, scored(0.6)) is None
    asked = [answer.note_rejection(position) for position in (11, 12, 13)]
    assert asked == [False, False, True]  # the scorer is asked at the end of the lag
    assert answer.judge(13, scored(0.7)) == Failure(10, scored(0.6), 1, (2,))


def test_a_screen_that_still_objects_to_passed_text_blames_no_later_word() -> None:
    answer = screened()
    answer.texts += [*[" word"] * 8, " end", ".", *[" more"] * 9]
    *words, end = [position for position, _ in answer.asks(ended=False)][:9]
    assert answer.ends(end)
    for position in words:
        answer.note_acceptance(position)
    assert answer.note_rejection(end)
    assert answer.judge(end, scored(0.1)) is None
    assert answer.passed == end
    assert not answer.note_rejection(end + 1)
    assert answer.note_rejection(end + 8)
    failure = answer.judge(end + 8, scored(0.6))
    assert failure == Failure(end + 8, scored(0.6), end, tuple(range(end + 1, end + 9)))


def test_a_word_that_failed_is_in_every_window_that_is_waited_for() -> None:
    answer = watch(lag=2, window_tokens=0)
    answer.texts += [f" w{i}" for i in range(9)]
    windows = [texts[0].split() for _, texts in answer.asks(ended=False)]
    assert windows[3:5] == [["w2", "w3", "w4"], ["w3", "w4", "w5"]]


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
        answer, judged, left = watch(pace, lag=lag), dict[int, float](), list(tokens)
        failure, passed = None, [0]
        while failure is None:
            ended, size = not left, sizes.pop()
            answer.texts += left[:size]
            left = left[size:]
            ended = ended or not (left or late)
            for position, windows in answer.asks(ended=ended):
                assert windows == ["".join(tokens[:position])]
                judged[position] = scores[position]
                failure = answer.judge(position, scored(scores[position]))
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
    growing = watch()
    growing.texts.append("Put")
    assert growing.asks(ended=False) == []
    growing.ends_word = True
    assert growing.asks(ended=False) == [(1, ["Put"])]
    growing.texts.append(" the")
    assert growing.asks(ended=False) == [(2, ["Put the"])]
    growing.texts.append(" eggs")
    growing.ends_word = False
    assert growing.asks(ended=False) == []
    assert growing.asks(ended=True) == [(3, ["Put the eggs"])]


@pytest.mark.parametrize("screened", [False, True])
def test_scorer_with_a_window_reads_the_last_words_and_all_that_is_unread(screened: bool) -> None:
    growing = watch(window_tokens=10)
    growing.window, growing.screened = 4, screened
    growing.texts += [f" word{number}" for number in range(40)]
    last = growing.asks(ended=True)[-1]
    assert len(last[1]) == (2 if screened else 1)  # the screen has no window
    if not screened:
        assert last[1] == [" word36 word37 word38 word39"]
    assert growing.windows(38, 40) == [" word36 word37 word38 word39"]
    assert growing.windows(30, 40) == ["".join(growing.texts[30:])]
