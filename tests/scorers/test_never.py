from __future__ import annotations

import pytest

from tide.scorers.words import NeverScorer


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("ACME", True),
        ("made by acme.", True),
        ("acme's", True),
        ("_acme_ and **x**", True),
        ("Acm&#101;", True),
        ("ac\u200bme", True),
        ("\uff41cme", True),
        ("\u0410cme", True),
        ("4cme", True),
        ("A c m e", True),
        ("a.c.m.e", True),
        ("A c m a.c.m.e", True),
        ("Globex\n  CORP", True),
        ("g l o b e x c o r p", True),
        ("\u4ed6acme\u4eba", True),
        ("acmes", False),
        ("Globex", False),
        ("corp globex", False),
        ("a cm e", False),
        ("I am a man", False),
        ("", False),
    ],
)
def test_a_word_is_found_however_it_is_written(text: str, holds: bool) -> None:
    assert NeverScorer(["Acme", "globex corp"]).score([text]).tolist() == [float(holds)]


def test_the_name_is_that_of_the_words() -> None:
    assert NeverScorer(["a b"]).name == NeverScorer(["A  B"]).name != NeverScorer(["ab c"]).name


def test_words_that_hold_marks_are_found_as_they_are() -> None:
    scorer = NeverScorer(["c++ users", "f-word"])
    assert scorer.score(["C++ users", "the f-word", "c users"]).tolist() == [1.0, 1.0, 0.0]
