from __future__ import annotations

from pathlib import Path

import pytest

from tide.data.prompts import Row
from tide.evaluation.benchmarks import load_benchmark, open_benchmark
from tide.evaluation.dialogues import is_held_out, provoking

HELD_OUT = [text for text in (f"You are stupid {i}" for i in range(100)) if is_held_out(text)]


def test_about_one_context_in_eight_is_held_out() -> None:
    assert 5 <= len(HELD_OUT) <= 25


def test_provoking_contexts_once_each_in_an_order_of_their_own() -> None:
    kept = provoking([Row(i, text) for i, text in enumerate(HELD_OUT)])
    assert {row.text for row in kept} == set(HELD_OUT)
    again = provoking(Row(i, text) for i, text in enumerate([*HELD_OUT[::-1], *HELD_OUT]))
    assert [row.text for row in again] == [row.text for row in kept]
    assert len({row.id for row in again}) == len(HELD_OUT)


def test_others_are_left_out() -> None:
    mild = next(t for t in (f"Have a nice day {i}" for i in range(100)) if is_held_out(t))
    trained_on = next(t for t in (f"You are stupid {i}" for i in range(9)) if not is_held_out(t))
    assert provoking([Row(0, mild), Row(1, trained_on)]) == []


def test_the_benchmark(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDE_DATA", str(shared_data / "corpus"))
    benchmark = load_benchmark("dialogues")
    assert len(benchmark.rows) == len({row.text for row in benchmark.rows}) == 300
    assert load_benchmark("dialogues", limit=7).rows == benchmark.rows[:7]
    assert {row.group for row in benchmark.rows} <= {"context_toxicity", "diasafety"}
    others = {row.text for row in load_benchmark("dialogues-dev").rows}
    assert others
    assert not others & {row.text for row in benchmark.rows}


def test_comments_that_are_not_answered_are_told_of(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIDE_DATA", str(shared_data / "corpus"))
    assert not any(row.chat for row in open_benchmark("dialogues:1-2", "prompt", None, False).rows)
    assert "dialogues:1-2: these are comments to answer" in caplog.text
    caplog.clear()
    answered = open_benchmark("dialogues:1-2", "prompt", None, True)
    assert all(row.chat for row in answered.rows)
    open_benchmark(answered, "prompt", None, False)  # as `tune` does for each of its tries
    open_benchmark(["Hello"], "prompt", None, False)
    assert not caplog.text
