"""Scorers of words: lists, words that a policy forbids."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes import FakeScorer
from tide.core.errors import InputError, MissingDependencyError
from tide.scorers import load_scorer
from tide.scorers.words import NeverScorer
from tide.scorers.wrappers import MaxScorer

MOSCOW = "\u041c\u043e\u0441\u043a\u0432\u0430"
GREECE = "\u0395\u03bb\u03bb\u03ac\u03b4\u03b1"
THAI = "\u0e04\u0e39\u0e48\u0e41\u0e02\u0e48\u0e07"


def test_words_of_a_file_are_whole_in_every_script(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Silly\n\nold hat\n\u7b28\u86cb\n\u0938\u094d\n", encoding="utf-8")
    scorer = load_scorer(f"lexicon:{words}")
    held = ["a SILLY thing", "an old hat!", "silly", "\u4ed6\u662f\u7b28\u86cb\u3002",
            "\u4ed6silly\u4eba"]  # fmt: skip
    assert scorer.score(held).tolist() == [1.0] * len(held)
    unlisted = ["sillyness", "old hats", "", "\u7b28", "\u0938\u094d\u0935"]
    assert scorer.score(unlisted).tolist() == [0.0] * len(unlisted)
    assert scorer.score([]).shape == (0,)


def test_the_name_is_that_of_the_words(tmp_path: Path) -> None:
    names = []
    for number, text in enumerate(("silly\nold\n", "old\nSILLY", "old\n")):
        (tmp_path / f"{number}").write_text(text)
        names.append(load_scorer(f"lexicon:{tmp_path / str(number)}").name)
    assert names[0] == names[1] != names[2]
    assert NeverScorer(["a b"]).name == NeverScorer(["A  B"]).name != NeverScorer(["ab c"]).name


def test_what_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    with pytest.raises(InputError, match=r"words.txt: no such file"):
        load_scorer(f"lexicon:{path}")
    path.write_text("\n \n")
    with pytest.raises(InputError, match="holds no words"):
        load_scorer(f"lexicon:{path}")


@pytest.mark.parametrize(
    ("name", "package"), [("lexicon", "better_profanity"), ("profanity-check", "profanity_check")]
)
def test_lists_of_other_packages(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package)
    scorer = load_scorer(name)
    good, bad = scorer.score(["Have a nice day", "what crap"])
    assert 0.0 <= good < 0.5 < bad <= 1.0
    assert scorer.score([]).shape == (0,)
    assert scorer.name.startswith(f"{name}@")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[profanity\]'"):
        load_scorer(name)


def test_a_forbidden_word_is_found_however_it_is_written() -> None:
    scorer = NeverScorer(["Acme", "globex corp", "c++ users"])
    for text in (
        "ACME", "_acme_ and **x**", "Acm&#101;", "ac\u200bme", "\u0410cme", "4cme", "A c m e",
        "A c m a.c.m.e", "Globex\n  CORP", "g l o b e x c o r p", "\u4ed6acme\u4eba",
    ):  # fmt: skip
        assert scorer.score([text]) == [1.0], text
    for text in ("c users", "acmes", "Globex", "a cm e", "I am a man"):
        assert scorer.score([text]) == [0.0], text


def test_a_forbidden_sign_forbids_no_single_letters() -> None:
    texts = ["At 3 p.m., e.g. in the U.S.", "He writes C++.", "**x**"]
    assert NeverScorer(["C++", "***"]).score(texts).tolist() == [0.0, 1.0, 0.0]


def test_forbidden_words_change_the_threshold_of_no_scorer() -> None:
    strict = FakeScorer(threshold=0.8)
    assert MaxScorer([strict, NeverScorer(["Acme"])]).threshold == 0.8


@pytest.mark.parametrize(
    ("word", "text"),
    [
        # Chinese, Japanese and Thai beside digits and Latin letters
        ("\u7ade\u54c1\u516c\u53f8", "iPhone\u7ade\u54c1\u516c\u53f8Pro"),
        ("\u7ade\u54c1\u516c\u53f8", "\u7b2c3\u7ade\u54c1\u516c\u53f8_"),
        ("\u7af6\u5408\u793e", "\u65b0\u3057\u3044X\u7af6\u5408\u793e2024\u30e2\u30c7\u30eb"),
        (THAI, f"{THAI}2\u0e04\u0e19"),
        # Korean with particles, digits and Latin letters
        ("\uc0bc\uc131\uc804\uc790", "\uc0bc\uc131\uc804\uc790\ub294 \ud070 \ud68c\uc0ac\ub2e4"),
        ("\uc0bc\uc131\uc804\uc790", "\uc0bc\uc131\uc804\uc790\uc5d0\uc11c\ub3c4 2024"),
        ("\uc0bc\uc131\uc804\uc790", "A\uc0bc\uc131\uc804\uc7902024"),
        ("Acme", "Acme\ub294 \ud070 \ud68c\uc0ac\ub2e4"),
        # phrases with hyphens and markup between the words
        ("globex corp", "the Globex-Corp is"),
        ("globex corp", "the **Globex** Corp"),
        ("globex corp", "the \u201cGlobex\u201d\u2013_Corp_"),
        ("globex-corp", "the Globex Corp"),
        # capitals that look Latin, in English text
        (MOSCOW, "I live in \u041c\u041e\u0421\u041a\u0412\u0410 now."),
        (GREECE, "We love \u0395\u039b\u039b\u0391\u0394\u0391 so much"),
        ("stra\u00dfe", "the STRASSE is"),
        ("Acme", "by \u1d00\u1d04\u1d0d\u1d07 today"),
    ],
)  # fmt: skip
def test_listed_words_are_found_in_every_script(word: str, text: str, tmp_path: Path) -> None:
    assert NeverScorer([word]).score([text]).tolist() == [1.0]
    path = tmp_path / "words.txt"
    path.write_text(word, encoding="utf-8")
    assert load_scorer(f"lexicon:{path}").score([text]).tolist() == [1.0]


@pytest.mark.parametrize("word", [MOSCOW, GREECE, "stra\u00dfe"])
def test_forbidden_words_are_found_with_spaced_letters(word: str) -> None:
    assert NeverScorer([word]).score([f"We love {' '.join(word)} so much"]).tolist() == [1.0]


def test_other_words_with_a_listed_beginning_are_not_found() -> None:
    never = NeverScorer(["\uc0bc\uc131", "Acme", "globex corp", "C++"])
    texts = ["\uc0bc\uc131\ub3d9\uc5d0", "Acme2", "globex, corp", "C users like c + d"]
    assert never.score(texts).tolist() == [0.0] * 4
