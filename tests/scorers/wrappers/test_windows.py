from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.scorers import CallableScorer
from tide.scorers.wrappers.windows import WindowedScorer, split_bytes, split_words


def test_the_worst_window_counts() -> None:
    seen: list[str] = []

    def bad_share(texts: list[str]) -> list[float]:
        seen.extend(texts)
        return [text.split().count("bad") / len(text.split()) for text in texts]

    scorer = WindowedScorer(CallableScorer(bad_share), 4)
    long = " ".join(["good"] * 20 + ["bad"] * 4 + ["good"] * 20)
    assert scorer.score([long, "one bad word", long]) == pytest.approx([1.0, 1 / 3, 1.0])
    assert all(len(text.split()) <= 4 for text in seen)
    assert scorer.name == "windows:4:callable:test_the_worst_window_counts.<locals>.bad_share"


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "..."]), max_size=40), st.integers(2, 9))
def test_windows_cover_all_pairs_of_neighbours(words: list[str], size: int) -> None:
    windows = split_words(" ".join(words), size)
    assert all(len(window.split()) <= size for window in windows)
    if len(words) <= size:
        assert windows == [" ".join(words)]
    pairs = {pair for w in windows for pair in itertools.pairwise(w.split())}
    assert pairs == set(itertools.pairwise(words))


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=300), st.integers(8, 60))
def test_bytes_are_split_without_loss(text: str, limit: int) -> None:
    parts = split_bytes(text, limit)
    assert "".join(parts) == text
    assert all(len(part.encode()) <= limit for part in parts)
    assert all(parts) or text == ""
