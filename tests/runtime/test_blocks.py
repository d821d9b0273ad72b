from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.runtime.blocks import LEAST, WHERE_NONE, first_end, last_end

WORDS = [f" w{i}" for i in range(200)]


@pytest.mark.parametrize(
    ("pieces", "end"),
    [
        ([*WORDS[:9], ".", *WORDS[:3]], 10),
        ([*WORDS[:3], ".", *WORDS[:9], "!", *WORDS[:3]], 14),  # the first is too short
        ([*WORDS[:9], '?"', *WORDS[:3]], 10),
        ([*WORDS[:9], ".", '"', ")", *WORDS[:3]], 12),  # what closes belongs to it
        ([*WORDS[:9], ". \n", *WORDS[:3]], 10),
        ([*WORDS[:9], "\n", *WORDS[:3]], 10),
        ([*WORDS[:9], "3", ".", "14", *WORDS[:3]], None),  # a number goes on
        ([*WORDS[:9], "."], None),  # it may be a number
        ([*WORDS[:9], ". And", *WORDS[:3]], None),  # inside of a token
        ([*WORDS[:9], "\u3002", "w"], 10),
        (WORDS[:64], None),
        (WORDS[:65], WHERE_NONE),
        ([*WORDS[:64], "."], WHERE_NONE),
        ([*WORDS[:63], ".", " a"], 64),
        ([*WORDS[:30], "a", "b", "c", *WORDS[:40]], 29),  # not inside of a word
        (["w"] * 70, WHERE_NONE),
        ([*["w"] * 30, "", "", "\u4e2d", *["w"] * 40], 30),  # nor of a character
    ],
)
def test_where_a_block_ends(pieces: list[str], end: int | None) -> None:
    assert first_end(pieces, 64, ended=False) == end
    ended = first_end(pieces, 64, ended=True)
    assert ended == (end or len(pieces))


def test_a_block_does_not_end_where_a_stop_string_may_begin() -> None:
    pieces = [*WORDS[:9], ".", *WORDS[20:29], ".", *WORDS[:5]]
    assert first_end(pieces, 64, ended=False, stop=["w8. w0"]) == 20
    assert first_end(pieces, 64, ended=False, stop=["x", "y."]) == 10


def test_a_stop_string_that_may_begin_anywhere_lets_a_block_end_with_the_text_alone() -> None:
    pieces = ["w"] * 70
    assert first_end(pieces, 64, ended=False, stop=["wx"]) is None
    assert first_end(pieces, 64, ended=True, stop=["wx"]) == 70


def test_what_was_cut_off_ends_with_its_last_sentence() -> None:
    assert last_end([*WORDS[:9], ".", *WORDS[:9], ".", *WORDS[:5]]) == 20
    assert last_end([*WORDS[:9], "."]) == 10
    assert last_end(WORDS[:9]) == 9
    assert last_end([*WORDS[:9], "", ""]) == 9
    assert last_end([]) == 0


pieces_of_text = st.lists(
    st.sampled_from([" w", "w", ".", ' "', "!", "\n", " ", "", "\u3002", "\ufffd", "3", "\u4e2d"])
)


@examples(200, 5000)
@given(pieces_of_text, st.integers(1, 70), st.integers(0, 200))
def test_blocks_hold_everything_once_and_do_not_depend_on_chunks(
    pieces: list[str], most: int, known: int
) -> None:
    """What is decided early is what is decided when all is known."""

    def cut(pieces: list[str], ended: bool) -> list[int]:
        ends = []
        while pieces and (end := first_end(pieces, most, ended=ended)) is not None:
            assert 0 < end <= most
            assert end >= min(LEAST, most) or end == len(pieces)
            ends.append(end)
            pieces = pieces[end:]
        return ends

    whole = cut(pieces, True)
    assert sum(whole) == len(pieces)
    filled = [piece or "x" for piece in pieces]
    early = cut(filled[:known], False)
    assert early == cut(filled, True)[: len(early)]
