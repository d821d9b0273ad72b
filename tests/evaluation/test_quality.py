from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.evaluation.quality import is_degenerate

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
        ("!!! ??? --- ... a word", True),
        ("\n \t", True),
    ],
)
def test_which_texts_are_degenerate(text: str, expected: bool) -> None:
    assert is_degenerate(text) is expected


@given(st.text(), st.integers(4, 6))
def test_what_is_repeated_often_enough_always_is(text: str, times: int) -> None:
    assert is_degenerate(f"{text} " * times)


@given(st.text())
def test_white_space_around_it_decides_nothing(text: str) -> None:
    assert is_degenerate(f"  {text.strip()} ") == is_degenerate(text.strip())
