from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.core.text import (
    before_half,
    ends_sentence,
    is_degenerate,
    maybe_stops,
    splits_character,
    start_before,
    word_starts,
)

WORDS = [f" w{i}" for i in range(9)]


@pytest.mark.parametrize(
    ("ending", "after", "ends"),
    [
        (["."], " w", True),
        (['?"'], " w", True),
        ([".", '"', ")"], " w", True),  # closing marks belong to the sentence
        ([". \n"], "w", True),
        (["\n"], "w", True),
        ([], "\n", True),
        (["3.14"], " w", False),
        ([". And"], " w", False),  # the sentence ends inside of a token
        (["\u3002"], "w", True),
        (["\u0964"], " w", True),
        (["\u061f"], " w", True),
    ],
)
def test_end_of_a_sentence(ending: list[str], after: str, ends: bool) -> None:
    pieces = [*WORDS, *ending, after]
    assert ends_sentence(pieces, len(pieces) - 1) is ends


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        (["The", " wea", "ther", " is"], [0, 1, 3]),
        (["\u0645", "\u0631", " \u062d", "\u0628"], [0, 2]),  # Arabic: letters are not words
        (["\u05e9", "\u05dc", " \u05e2", "\u05dd"], [0, 2]),
        (["\u0928", "\u092e", " \u0938", "\u094d"], [0, 2]),
        (["\ud55c", "\uad6d", " \ub9d0"], [0, 2]),
        (["\u4eba", "\u4eec", "\u3002", "\u597d"], [0, 1, 3]),
        (["", "", "\u4eba", "", "\u4eec"], [0, 3]),  # words begin at their first token
        ([" a", "", " \u4eba", ""], [0, 1]),
        (["\u0e01", "\u0e33", "\u0e25"], [0, 2]),  # a vowel stays with its consonant
        (["x", "\U0001f468", "\u200d", "\U0001f469", "\U0001f600"], [0, 1, 4]),
        ([], []),
        pytest.param([" a"] * 300_000, [*range(300_000)], id="an answer of a megabyte"),
    ],
)
def test_word_starts_in_any_script(pieces: list[str], starts: list[int]) -> None:
    assert list(word_starts(pieces)) == starts


@pytest.mark.parametrize(
    ("pieces", "end"),
    [
        (["a", "", "\u4eba", "b"], 4),
        (["a", "", "", "\ufffdb", "c"], 1),
        (["a", "", "\u4eba", "", "\ufffd"], 3),
        (["\ufffd", "a"], 0),
        ([], 0),
    ],
)
def test_before_half_character(pieces: list[str], end: int) -> None:
    assert before_half(pieces) == end


PLAIN = "She opened the window and looked at the garden, which was wet from the rain."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PLAIN, False),
        ("Two and two is four, said the teacher.", False),
        ("of the of the of the of the", True),
        ("He was too late. He was too late. He was too late.", True),
        ("0000000000000000", True),
        ("ha ha ha ha ha ha", True),
        ("", True),
        ("yes", True),
        ("\u4f60", True),
        # Combining marks are letters. A letter of some scripts is a syllable or a word.
        ("\u1019\u1004\u103a\u1039\u1002\u101c\u102c\u1015\u102b", False),  # Burmese
        ("\u0928\u092e\u0938\u094d\u0924\u0947", False),  # Devanagari
        ("\u4f60\u597d", False),  # Chinese
        ("\uc548\ub155", False),  # Korean
        ("!!! ??? --- ... a word", True),
    ],
)
def test_is_degenerate(text: str, expected: bool) -> None:
    assert is_degenerate(text) is expected


@examples(100, 20000)
@given(st.text(st.sampled_from("a \r\n\u0301\u0600\u00e9\u1100\u1161\u200d\U0001f600"), max_size=6))
def test_a_character_is_a_grapheme_cluster(text: str) -> None:
    ends = {match.end() for match in regex.finditer(r"\X", text)} | {0}
    for index in range(len(text) + 1):
        assert splits_character(text[:index], text[index:]) is (index not in ends)


@examples(50, 1000)
@given(st.lists(st.text("ab", max_size=3)), st.lists(st.text("ab", min_size=1, max_size=4)))
def test_only_the_last_pieces_say_whether_a_stop_string_may_have_begun(
    pieces: list[str], stop: list[str]
) -> None:
    for end in range(len(pieces) + 1):
        text = "".join(pieces[:end])
        begun = [string[:count] for string in stop for count in range(1, len(string))]
        assert maybe_stops(stop, pieces, end) == text.endswith(tuple(begun))
        start = start_before(pieces, end, 3)
        assert start == 0 or len("".join(pieces[start:end])) >= 3
