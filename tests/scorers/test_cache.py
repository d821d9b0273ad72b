from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.scorers.test_wrappers import TwoSides
from tide.core.errors import ScorerError, ScorerUnavailableError
from tide.scorers import CallableScorer, load_scorer, score_texts
from tide.scorers.base import attributes_of
from tide.scorers.wrappers import CachedScorer, MaxScorer, WindowedScorer

TEXTS = [f"text number {i}" for i in range(200)]


class Counting:
    """Scores by length, records its texts, and fails from text number `fails_at` on."""

    threshold = 0.4

    def __init__(self, name: str = "counting@1", fails_at: int | None = None) -> None:
        self.name = name
        self.asked: list[str] = []
        self._fails_at = fails_at

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        if self._fails_at is not None and len(self.asked) + len(texts) > self._fails_at:
            raise TimeoutError("late")
        self.asked += texts
        return np.array([len(text) / 100 for text in texts])

    def close(self) -> None:
        pass


@contextmanager
def cached(scorer: Any, path: Path | str) -> Iterator[CachedScorer]:
    with closing(CachedScorer(scorer, path)) as opened:
        yield opened


def test_asks_once_across_objects_for_each_revision(tmp_path: Path) -> None:
    path = tmp_path / "a" / "scores.sqlite3"
    expected = [len(text) / 100 for text in TEXTS]
    with cached(first := Counting(), path) as scorer:
        assert (scorer.name, scorer.threshold) == ("counting@1", 0.4)
        assert scorer.score(TEXTS) == pytest.approx(expected)
        assert scorer.score(TEXTS[::-1]) == pytest.approx(expected[::-1])
        assert first.asked == TEXTS
    with cached(second := Counting(), path) as scorer:
        assert scorer.score([*TEXTS, "a new one", TEXTS[0]])[:200] == pytest.approx(expected)
        assert second.asked == ["a new one"]
        assert scorer.score([]).shape == (0,)
    with cached(renamed := Counting("counting@2"), path) as scorer:
        scorer.score(TEXTS[:3])
        assert renamed.asked == TEXTS[:3]


def test_what_was_scored_before_an_outage_is_kept(tmp_path: Path) -> None:
    with (
        cached(Counting(fails_at=130), tmp_path / "scores.sqlite3") as scorer,
        pytest.raises(ScorerUnavailableError, match="counting@1: TimeoutError"),
    ):
        score_texts(scorer, TEXTS)
    with cached(back := Counting(), tmp_path / "scores.sqlite3") as scorer:
        scorer.score(TEXTS)
        assert back.asked == TEXTS[128:]


def test_what_is_no_score_is_not_stored(tmp_path: Path) -> None:
    bad = CallableScorer(lambda texts: [1.5] * len(texts))
    bad.name = "counting@1"
    with (
        cached(bad, tmp_path / "scores.sqlite3") as scorer,
        pytest.raises(ScorerError, match="not a score"),
    ):
        scorer.score(TEXTS[:1])
    with cached(Counting(), tmp_path / "scores.sqlite3") as scorer:
        assert scorer.score(TEXTS[:1]) == pytest.approx([0.13])


def test_cache_tells_lambdas_apart(tmp_path: Path) -> None:
    half, whole = (CallableScorer(lambda texts, v=v: [v] * len(texts)) for v in (0.5, 1.0))
    none = CallableScorer(lambda texts: [0.0] * len(texts))
    for scorer, expected in ((half, 0.5), (whole, 1.0), (none, 0.0), (half, 0.5)):
        for around in (scorer, WindowedScorer(scorer), MaxScorer([scorer, scorer])):
            with cached(around, tmp_path / "scores.sqlite3") as opened:
                assert opened.score(["a text"]) == [expected]


def test_cache_forgets_scores_of_edited_code(tmp_path: Path) -> None:
    """A class keeps its name while its file, or a function beside it, is edited."""
    path = tmp_path / "mine.py"
    for value in (0.1, 0.2):
        path.write_text(
            "from tide.scorers import PlainScorer\n"
            f"def value():\n    return {value}\n"
            "class Mine(PlainScorer):\n    name = 'mine'\n"
            "    def score(self, texts):\n        return [value()] * len(texts)\n"
        )
        for spec in (f"{path}:Mine", f"windows:{path}:Mine"):
            with cached(load_scorer(spec), tmp_path / "scores.sqlite3") as opened:
                assert opened.score(["a text"]) == [value]


def test_a_file_that_is_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    path.write_text("something else entirely, long enough to be looked at" * 100)
    with pytest.raises(
        ScorerError, match=r"scores\.sqlite3 cannot be used: .*delete the file"
    ) as error:
        CachedScorer(Counting(), path)
    assert "\n" not in str(error.value)


def test_the_place_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDE_CACHE", str(tmp_path / "here.sqlite3"))
    with closing(load_scorer("cache:pocket")) as scorer:
        assert scorer.name == load_scorer("pocket").name
        scorer.score(["a secret text"])
    assert b"a secret text" not in (tmp_path / "here.sqlite3").read_bytes()
    monkeypatch.delenv("TIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_scorer("cache:pocket").close()
    assert (tmp_path / "tide" / "scores.sqlite3").exists()


def columns(scorer: CachedScorer, texts: list[str]) -> dict[str, list[float]]:
    scores = score_texts(scorer, texts)
    return {n: column.tolist() for n, column in {**scores.attributes, "": scores.values}.items()}


def test_cache_keeps_attributes(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    with cached(TwoSides(), path) as scorer:
        expected = columns(scorer, TEXTS[:2])
    raw = TwoSides().score_attributes(TEXTS[:2])
    assert expected == {"": raw.values.tolist(), **{n: c.tolist() for n, c in raw[1].items()}}
    with cached(inner := TwoSides(), path) as scorer:
        assert attributes_of(scorer) == inner.attributes
        assert columns(scorer, TEXTS[:2]) == expected
        assert inner.asked == 0


@pytest.mark.parametrize("score", [7.0, -0.5])
def test_cache_gives_out_no_invalid_score(tmp_path: Path, score: float) -> None:
    path = tmp_path / "scores.sqlite3"
    with cached(Counting(), path) as scorer:
        scorer.score(TEXTS[:3])
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE texts SET score = ?", [score])
    with cached(Counting(), path) as scorer, pytest.raises(ScorerError, match="is not a score"):
        score_texts(scorer, TEXTS[:3])
