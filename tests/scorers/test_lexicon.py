from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tide.core.errors import InputError, MissingDependencyError
from tide.scorers import load_scorer


def test_whole_words_of_a_file(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("Silly\n\nold hat\n")
    scorer = load_scorer(f"lexicon:{words}")
    texts = ["a SILLY thing", "sillyness", "an old hat!", "old hats", "", "silly"]
    assert scorer.score(texts).tolist() == [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert scorer.score([]).shape == (0,)


def test_a_word_is_whole_in_a_script_without_spaces(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\u7b28\u86cb\nsilly\n\u0938\u094d\n", encoding="utf-8")
    scorer = load_scorer(f"lexicon:{words}")
    texts = ["\u4ed6\u662f\u7b28\u86cb\u3002", "\u4ed6silly\u4eba", "\u7b28", "\u0938\u094d\u0935"]
    assert scorer.score(texts).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_the_name_is_that_of_the_words(tmp_path: Path) -> None:
    names = []
    for number, text in enumerate(("silly\nold\n", "old\nSILLY", "old\n")):
        (tmp_path / f"{number}").write_text(text)
        names.append(load_scorer(f"lexicon:{tmp_path / str(number)}").name)
    assert names[0] == names[1] != names[2]


def test_the_list_of_better_profanity() -> None:
    pytest.importorskip("better_profanity")
    assert load_scorer("lexicon").score(["a fine day", "what crap"]).tolist() == [0.0, 1.0]


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"lexicon: .*none.txt: no such file"):
        load_scorer(f"lexicon:{tmp_path / 'none.txt'}")
    with pytest.raises(InputError, match="/dev/zero: has more than 256 MiB"):
        load_scorer("lexicon:/dev/zero")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match="holds no words"):
        load_scorer(f"lexicon:{tmp_path / 'empty.txt'}")
    monkeypatch.setitem(sys.modules, "better_profanity", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[profanity\]'"):
        load_scorer("lexicon")
