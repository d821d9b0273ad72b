from __future__ import annotations

import itertools
import random

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from tide.core.text import splits_character
from tide.scorers import CallableScorer
from tide.scorers.words import NeverScorer
from tide.scorers.wrappers import WindowedScorer, split_words


def test_the_worst_window_counts() -> None:
    seen: list[str] = []

    def bad_share(texts: list[str]) -> list[float]:
        seen.extend(texts)
        return [text.split().count("bad") / len(text.split()) for text in texts]

    scorer = WindowedScorer(CallableScorer(bad_share), 4)
    long = " ".join(["good"] * 20 + ["bad"] * 4 + ["good"] * 20)
    assert scorer.score([long, "one bad word", long]) == pytest.approx([1.0, 1 / 3, 1.0])
    assert all(len(text.split()) <= 4 for text in seen)
    assert seen.count("one bad word") == 1
    name = "windows:4:callable:test_the_worst_window_counts.<locals>.bad_share@"
    assert scorer.name.startswith(name)


def test_an_override_acts_on_words_of_all_windows() -> None:
    scorer = WindowedScorer(NeverScorer(["bad"]), 4)
    long = "one two three four five six " * 3
    assert scorer.score([f"\u202e{long}dab", f"{long}dab", f"{long}bad"]).tolist() == [1, 0, 1]


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "..."]), max_size=40), st.integers(2, 9))
def test_windows_cover_all_pairs_of_neighbours(words: list[str], size: int) -> None:
    windows = split_words(" ".join(words), size)
    assert all(len(window.split()) <= size for window in windows)
    if len(words) <= size:
        assert windows == [" ".join(words)]
    pairs = {pair for w in windows for pair in itertools.pairwise(w.split())}
    assert pairs == set(itertools.pairwise(words))


CHARACTERS = {
    "Han": "\u4eba \u4eec \u5f88 \u597d \u3002",
    "kana": "\u3072 \u3068 \u30d2 \u30fc \u30c3",
    "Thai": "\u0e04 \u0e19\u0e34 \u0e14\u0e35 \u0e46 \u0e01\u0e33",
    "Khmer": "\u1781\u17d2\u1798\u17c2 \u179a \u1780 \u178f",
    "Devanagari": "\u0939\u093f \u0928 \u0926\u0940 \u092e",
    "emoji": "\U0001f468\u200d\U0001f469 \U0001f600 \U0001f1eb\U0001f1f7 \u2764\ufe0f",
    "one word": "a b c d e\u0301",
    "marks": "- = ! *",
}


@pytest.mark.parametrize("script", CHARACTERS)
@pytest.mark.parametrize("words", [9, 100])
def test_texts_without_spaces_are_split(script: str, words: int) -> None:
    """Windows are short and cover all of a text of 1,101 characters."""
    text = "".join(random.Random(0).choices(CHARACTERS[script].split(), k=1101))
    end = 0
    for window in split_words(text, words):
        assert len(regex.findall(r"\X", window)) <= 8 * words
        start = text.index(window)
        assert start <= end < start + len(window)
        assert not splits_character(text[:start], text[start:])
        end = start + len(window)
        assert not splits_character(text[:end], text[end:])
    assert end == len(text)


def test_words_of_a_usual_length_are_whole() -> None:
    words = ["antidisestablishment", "na\u00efve,", "\u0414\u043e\u0431\u0440\u043e", "x" * 24, "y"]
    assert split_words(" ".join(words), 2) == list(map(" ".join, itertools.pairwise(words)))
    assert split_words("x" * 25, 3) == ["x" * 24, "x" * 9]


def test_marks_without_end_hide_nothing() -> None:
    text = "e" + "\u0301" * 1100 + " idiot"
    windows = split_words(text, 9)
    assert max(map(len, windows)) <= 9 * 64
    assert windows[-1].endswith("idiot")
