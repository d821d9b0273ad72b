"""Scorers of words: lists, words that a policy forbids."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.worlds import ReadingScorer
from tide.core.errors import InputError, MissingDependencyError
from tide.scorers import load_scorer
from tide.scorers.words import NeverScorer
from tide.scorers.wrappers.base import MaxScorer


def test_words_of_a_file_are_whole_in_every_script(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Silly\n\nold hat\n\u7b28\u86cb\n\u0938\u094d\n", encoding="utf-8")
    scorer = load_scorer(f"lexicon:{words}")
    held = ["a SILLY thing", "an old hat!", "silly", "\u4ed6\u662f\u7b28\u86cb\u3002",
            "\u4ed6silly\u4eba"]  # fmt: skip
    assert scorer.score(held).tolist() == [1.0] * len(held)
    others = ["sillyness", "old hats", "", "\u7b28", "\u0938\u094d\u0935"]
    assert scorer.score(others).tolist() == [0.0] * len(others)
    assert scorer.score([]).shape == (0,)


def test_the_name_is_that_of_the_words(tmp_path: Path) -> None:
    names = []
    for number, text in enumerate(("silly\nold\n", "old\nSILLY", "old\n")):
        (tmp_path / f"{number}").write_text(text)
        names.append(load_scorer(f"lexicon:{tmp_path / str(number)}").name)
    assert names[0] == names[1] != names[2]
    assert NeverScorer(["a b"]).name == NeverScorer(["A  B"]).name != NeverScorer(["ab c"]).name


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    for path, message in (
        (tmp_path / "none.txt", r"lexicon: .*none.txt: no such file"),
        (tmp_path / "empty.txt", "holds no words"),
    ):
        with pytest.raises(InputError, match=message):
            load_scorer(f"lexicon:{path}")


@pytest.mark.parametrize(
    ("name", "package"), [("lexicon", "better_profanity"), ("profanity-check", "profanity_check")]
)
def test_lists_of_other_packages(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package)
    scorer = load_scorer(name)
    good, bad = scorer.score(["Have a nice day", "what crap"])
    assert 0.0 <= good < 0.5 < bad <= 1.0
    assert scorer.name.startswith(f"{name}@")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[profanity\]'"):
        load_scorer(name)


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
        ("C++ users", True),
        ("c users", False),
        ("acmes", False),
        ("Globex", False),
        ("corp globex", False),
        ("a cm e", False),
        ("I am a man", False),
        ("", False),
    ],
)
def test_a_forbidden_word_is_found_however_it_is_written(text: str, holds: bool) -> None:
    scorer = NeverScorer(["Acme", "globex corp", "c++ users"])
    assert scorer.score([text]).tolist() == [float(holds)]


def test_a_forbidden_sign_forbids_no_single_letters() -> None:
    texts = ["At 3 p.m., e.g. in the U.S.", "He writes C++.", "**x**"]
    assert NeverScorer(["C++", "***"]).score(texts).tolist() == [0.0, 1.0, 0.0]


def test_forbidden_words_change_the_threshold_of_no_scorer() -> None:
    class Strict(ReadingScorer):
        threshold = 0.8

    assert MaxScorer([Strict(), NeverScorer(["Acme"])]).threshold == 0.8
