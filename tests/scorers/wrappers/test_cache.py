from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.generated import examples
from tests.scorers.wrappers.stand_ins import TwoSides
from tide.core.errors import InputError, ScorerError, ScorerUnavailableError
from tide.scorers import CallableScorer, load_scorer, score_texts
from tide.scorers.base import ask_attributes, attributes_of
from tide.scorers.wrappers.base import MaxScorer, WindowedScorer
from tide.scorers.wrappers.cache import CachedScorer

TEXTS = [f"text number {i}" for i in range(200)]


class Counting:
    """By length; counts what it is asked, and fails from text number `fails_at` on."""

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


def test_asks_once_across_objects(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    scorer = CachedScorer(first, tmp_path / "a" / "scores.sqlite3")
    assert (scorer.name, scorer.threshold) == ("counting@1", 0.4)
    expected = [len(text) / 100 for text in TEXTS]
    assert scorer.score(TEXTS) == pytest.approx(expected)
    assert scorer.score(TEXTS[::-1]) == pytest.approx(expected[::-1])
    assert first.asked == TEXTS
    scorer.close()
    again = CachedScorer(second, tmp_path / "a" / "scores.sqlite3")
    assert again.score([*TEXTS, "a new one", TEXTS[0]])[:200] == pytest.approx(expected)
    assert second.asked == ["a new one"]
    assert again.score([]).shape == (0,)
    again.close()


def test_another_revision_is_another_scorer(tmp_path: Path) -> None:
    for revision in ("counting@1", "counting@2"):
        counting = Counting(revision)
        scorer = CachedScorer(counting, tmp_path / "scores.sqlite3")
        scorer.score(TEXTS[:3])
        assert counting.asked == TEXTS[:3]
        scorer.close()


def test_what_was_scored_before_an_outage_is_kept(tmp_path: Path) -> None:
    scorer = CachedScorer(Counting(fails_at=130), tmp_path / "scores.sqlite3")
    with pytest.raises(ScorerUnavailableError, match="counting@1: TimeoutError"):
        score_texts(scorer, TEXTS, "zero")
    scorer.close()
    back = Counting()
    scorer = CachedScorer(back, tmp_path / "scores.sqlite3")
    scorer.score(TEXTS)
    assert back.asked == TEXTS[128:]
    scorer.close()


@pytest.mark.parametrize("answer", [float("nan"), 1.5])
def test_what_is_no_score_is_not_stored(tmp_path: Path, answer: float) -> None:
    bad = CallableScorer(lambda texts: [answer] * len(texts))
    bad.name = "counting@1"
    scorer = CachedScorer(bad, tmp_path / "scores.sqlite3")
    with pytest.raises(ScorerError, match="not a score"):
        scorer.score(TEXTS[:1])
    scorer.close()
    scorer = CachedScorer(Counting(), tmp_path / "scores.sqlite3")
    assert scorer.score(TEXTS[:1]) == pytest.approx([0.13])
    scorer.close()


def test_a_function_has_no_revision(tmp_path: Path) -> None:
    function = CallableScorer(lambda texts: [0.5] * len(texts))
    with pytest.raises(InputError, match="has no revision"):
        CachedScorer(function, tmp_path / "scores.sqlite3")
    scorer = CachedScorer(function, ":memory:")
    assert scorer.score(["a text"]) == [0.5]
    scorer.close()


def test_a_file_that_is_no_cache(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    path.write_text("something else entirely, long enough to be looked at" * 100)
    with pytest.raises(ScorerError, match=r"scores\.sqlite3: cannot be used: .*delete it") as error:
        CachedScorer(Counting(), path)
    assert "\n" not in str(error.value)


def test_a_function_inside_another_wrapper_has_none_either(tmp_path: Path) -> None:
    function = CallableScorer(lambda texts: [0.5] * len(texts))
    for scorer in (WindowedScorer(function), MaxScorer([function, Counting()])):
        with pytest.raises(InputError, match="has no revision"):
            CachedScorer(scorer, tmp_path / "scores.sqlite3")


@pytest.mark.parametrize("entry", [7.0, -0.5, -1.0, float("inf"), "0.1", "high", b"\x00", None])
def test_a_poisoned_entry_is_the_caches_fault_and_scored_again(
    tmp_path: Path, entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scores.sqlite3"
    scorer = CachedScorer(Counting(), path)
    expected = scorer.score(TEXTS[:3])
    scorer.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        # In a table that takes anything, as one may be that somebody else made.
        database.execute("CREATE TABLE other (key BLOB PRIMARY KEY, score)")
        database.execute("INSERT INTO other SELECT key, ? FROM scores", [entry])
        database.execute("DROP TABLE scores")
        database.execute("ALTER TABLE other RENAME TO scores")
    for asked in (TEXTS[:3], []):
        counting = Counting()
        scorer = CachedScorer(counting, path)
        assert score_texts(scorer, TEXTS[:3], "zero").values.tolist() == expected.tolist()
        assert counting.asked == asked
        scorer.close()
    assert caplog.messages == [f"cache {path}: an entry is not a score; it is scored again"]


@pytest.mark.parametrize(
    "place",
    [".", "\0", "a" * 300, "a" * 300 + "/scores.sqlite3", "/proc/scores.sqlite3",
     "/dev/null/scores.sqlite3", "/dev/full"],
)  # fmt: skip
def test_a_place_where_no_file_can_be(tmp_path: Path, place: str) -> None:
    with (
        pytest.raises(ScorerError, match=r"^cache .*: cannot be used: ") as error,
        closing(CachedScorer(Counting(), str(tmp_path / place))) as scorer,
    ):
        scorer.score(TEXTS)
    assert len(str(error.value).splitlines()) == 1


@given(st.data())
@pytest.mark.attack
@examples(50, 1000)
def test_a_file_with_damage_is_refused_or_holds_scores(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "scores.sqlite3"
        scorer = CachedScorer(Counting(), path)
        scorer.score(TEXTS)
        scorer.close()
        content = bytearray(path.read_bytes())
        places = data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=40))
        for place in places:
            content[place] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.sampled_from([len(content), places[0]]))])
        try:
            with closing(CachedScorer(Counting(), path)) as scorer:
                scores = scorer.score(TEXTS)
        except ScorerError as error:
            refusal = str(error)
            assert refusal.startswith(f"cache {path}: cannot be used: ")
            assert len(refusal.splitlines()) == 1
        else:
            assert ((scores >= 0) & (scores <= 1)).all()


def test_the_place_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDE_CACHE", str(tmp_path / "here.sqlite3"))
    scorer = load_scorer("cache:pocket")
    assert scorer.name == load_scorer("pocket").name
    scorer.score(["a secret text"])
    scorer.close()
    assert b"a secret text" not in (tmp_path / "here.sqlite3").read_bytes()
    monkeypatch.delenv("TIDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_scorer("cache:pocket").close()
    assert (tmp_path / "tide" / "scores.sqlite3").exists()


WORKER = """
import sys, numpy as np
from tide.scorers.wrappers.cache import CachedScorer

class Slow:
    name, threshold = "slow@1", 0.5
    def score(self, texts):
        return np.array([len(text) / 1000 for text in texts])
    def close(self): pass

scorer = CachedScorer(Slow(), sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for start in range(int(sys.argv[2]), int(sys.argv[3]), 8):
    scorer.score([f"{i} " * 20 for i in range(start, start + 8)])
"""


def worker(path: Path, first: int, last: int) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(first), str(last)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def contents(path: Path) -> int:
    database = sqlite3.connect(path)
    try:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return int(database.execute("SELECT count(*) FROM scores").fetchone()[0])
    finally:
        database.close()


def test_two_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    processes = [worker(path, 0, 1600), worker(path, 800, 2400)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert contents(path) == 2400


def test_a_killed_process_leaves_it_readable(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    process = worker(path, 0, 10**9)
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    deadline = time.monotonic() + 60
    while (tmp_path / "scores.sqlite3-wal").stat().st_size < 100_000:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    stored = contents(path)
    assert stored > 0
    assert stored % 8 == 0  # whole calls, never a part of one
    scorer = CachedScorer(Counting("slow@1", fails_at=0), path)
    assert scorer.score(["0 " * 20]) == [0.04]
    scorer.close()


def test_a_file_that_answers_with_another_key_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose index was damaged."""
    scorer = CachedScorer(Counting(), tmp_path / "scores.sqlite3")
    expected = scorer.score(TEXTS).tolist()
    monkeypatch.setattr(scorer, "_read", lambda keys: [(None, 0.25, None), (b"other", 0.5, None)])
    assert scorer.score(TEXTS).tolist() == expected
    scorer.close()


def test_attributes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    inner = TwoSides()
    expected = inner.score_attributes(TEXTS)
    scorer = CachedScorer(inner, path)
    assert attributes_of(scorer) == inner.attributes
    assert scorer.score(TEXTS) == pytest.approx(expected.values)
    scorer.close()
    second = TwoSides()
    scorer = CachedScorer(second, path)
    found = ask_attributes(scorer, [*TEXTS, "A new one"])
    assert found.values[:-1] == pytest.approx(expected.values)
    assert second.asked == 1
    new = second.score_attributes(["A new one"]).attributes
    for name in inner.attributes:
        assert found.attributes[name][:-1] == pytest.approx(expected.attributes[name])
        assert found.attributes[name][-1] == new[name]
    scorer.close()


def test_a_cache_of_an_earlier_version_has_scores_and_no_attributes(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    inner = TwoSides()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE scores (key BLOB PRIMARY KEY, score REAL NOT NULL) STRICT")
        key = hashlib.sha256(b"two@1\0a text").digest()
        database.execute("INSERT INTO scores VALUES (?, ?)", [key, 0.125])
    scorer = CachedScorer(inner, path)
    assert scorer.score(["a text"]) == [0.125]
    assert inner.asked == 0
    found = score_texts(scorer, ["a text", "Another"], "zero")
    assert found.values[0] == 0.125
    assert found.known(0) == {}
    assert found.known(1) == {"threat": 0.07, "insult": 1 / 7}
    scorer.close()


@pytest.mark.parametrize(
    "entry", ["", "[0.5]", '{"threat": 0.5}', '{"threat": 7, "insult": 0}', '{"threat": "0.1"}']
)
def test_attributes_that_are_none_are_scored_again(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "scores.sqlite3"
    scorer = CachedScorer(TwoSides(), path)
    expected = ask_attributes(scorer, TEXTS[:2])
    scorer.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE attributes SET attributes = ?", [entry])
    for asked in (1, 0):
        inner = TwoSides()
        scorer = CachedScorer(inner, path)
        found = ask_attributes(scorer, TEXTS[:2])
        assert inner.asked == asked
        for name in inner.attributes:
            assert found.attributes[name].tolist() == expected.attributes[name].tolist()
        scorer.close()
