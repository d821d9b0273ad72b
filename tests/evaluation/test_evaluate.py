from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.data.prompts import Row
from tide.errors import InputError, ScorerUnavailable, TideError
from tide.evaluation import runs
from tide.evaluation.benchmarks import Benchmark
from tide.evaluation.evaluate import Setting, measure_perplexity, run_method
from tide.evaluation.methods import load_method
from tide.evaluation.perplexity import Fluency
from tide.evaluation.places import Here
from tide.evaluation.protocols import PROTOCOLS
from tide.evaluation.sharing import SharedEngine

ROWS = [Row(i, prompt, "odd" if i % 2 else "even") for i, prompt in enumerate(PROMPTS)]


class Judge:
    """Twice as kind as the scorer of the search. Fails at its call number `fails_at`."""

    name = "kind"
    threshold = 0.5

    def __init__(self, fails_at: int | None = None) -> None:
        self.calls, self.fails_at = 0, fails_at

    def score(self, texts: Any) -> Any:
        self.calls += 1
        if self.calls == self.fails_at:
            raise TimeoutError("no answer")
        return np.array([float(text.split()[1]) / 2 for text in texts])

    def close(self) -> None:
        pass


class WordCount:
    """A reference that finds every word of a completion equally likely."""

    name = "words"

    def measure(self, pairs: Any) -> list[Fluency]:
        return [Fluency(1.5, len(completion.split())) for _, completion in pairs]


def run(
    folder: Path,
    spec: str = "tide",
    rows: list[Row] = ROWS,
    judge: Judge | None = None,
    **common: Any,
) -> list[tuple[Row, TideError | None]]:
    engine, scorer = SharedEngine(scripted_engine()), ReadingScorer()
    method = load_method(spec, Here(engine, scorer), PROTOCOLS["tide"], common)
    benchmark = Benchmark("mine", "mine.jsonl", rows)
    setting = Setting(benchmark, PROTOCOLS["tide"], scorer, [judge or Judge()], {"model": "world"})
    return list(run_method(method, setting, folder))


def test_a_run_folder(tmp_path: Path) -> None:
    assert [error for _, error in run(tmp_path)] == [None] * len(ROWS)
    assert sum(measure_perplexity(tmp_path, WordCount())) == len(ROWS)  # type: ignore[arg-type]
    read = runs.read_run(tmp_path)
    assert (read.name, read.config["model"], read.config["judges"]) == ("tide", "world", ["kind"])
    assert read.config["reference"] == "words"
    assert read.config["protocol"]["num_trials"] == 3
    assert sorted(record["id"] for record in read.records) == [row.id for row in ROWS]
    for record in read.records:
        assert record["group"] == ("odd" if record["id"] % 2 else "even")
        halves = [score / 2 for score in record["toxicity_scores"]]
        # The engine writes six digits of what the scorer read.
        assert record["judge_scores"]["kind"] == pytest.approx(halves)
        assert "returned_texts" not in record
        for steps in record["steps"]:
            assert all(s["judge_scores"]["kind"] == pytest.approx(s["toxicity"] / 2) for s in steps)
        assert read.perplexity[record["id"]] == [pytest.approx(np.exp(1.5))] * 3


def test_resumes_and_repeats_nothing(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(ScorerUnavailable, match="kind"):
        run(tmp_path / "broken", judge=Judge(fails_at=3))
    kept = (tmp_path / "broken" / runs.RECORDS).read_text().splitlines()
    assert len(kept) == 2
    assert len(run(tmp_path / "broken")) == len(ROWS) - 2
    lines = (tmp_path / "broken" / runs.RECORDS).read_text().splitlines()
    assert lines[:2] == kept
    by_id = [
        {r["id"]: r["completions"] for r in runs.read_run(tmp_path / name).records}
        for name in ("whole", "broken")
    ]
    assert by_id[0] == by_id[1]
    assert run(tmp_path / "broken") == []


def test_perplexity_resumes(tmp_path: Path) -> None:
    run(tmp_path)
    list(measure_perplexity(tmp_path, WordCount()))  # type: ignore[arg-type]
    path = tmp_path / runs.PERPLEXITY
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:10])
    assert list(measure_perplexity(tmp_path, WordCount())) == [len(ROWS) - 2]  # type: ignore[arg-type]
    assert sorted(path.read_text().splitlines(keepends=True)) == sorted(lines)
    other = WordCount()
    other.name = "letters"
    with pytest.raises(InputError, match="reference = 'words', this run has 'letters'"):
        list(measure_perplexity(tmp_path, other))  # type: ignore[arg-type]


def test_a_withheld_completion_is_judged(tmp_path: Path) -> None:
    run(tmp_path, "random-walk", on_unresolved="refuse", max_iterations=1)
    withheld = 0
    for record in runs.read_run(tmp_path).records:
        for trial, refused in enumerate(record["refused"]):
            withheld += refused
            assert (record["completions"][trial] == "") == refused
            assert record["judge_scores"]["kind"][trial] > 0
    assert withheld


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": "fast"}, "was made with method = 'tide', this run has 'fast'"),
        ({"rows": ROWS[:2]}, r"benchmark.prompts = 5, this run has 2"),
        ({"seed": 1}, r"settings.seed = 0, this run has 1"),
    ],
)
def test_a_folder_of_another_config(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    run(tmp_path)
    before = (tmp_path / runs.RECORDS).read_bytes()
    with pytest.raises(InputError, match=message):
        run(tmp_path, **change)
    assert (tmp_path / runs.RECORDS).read_bytes() == before


def test_a_prompt_that_fails_leaves_the_others(tmp_path: Path) -> None:
    rows = [*ROWS, Row("none", " ")]
    outcome = {row.id: error for row, error in run(tmp_path, rows=rows)}
    assert isinstance(outcome.pop("none"), InputError)
    assert set(outcome.values()) == {None}
    assert len(runs.read_run(tmp_path).records) == len(ROWS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (runs.PERPLEXITY, '{"id": 0}\n'),
        (runs.PERPLEXITY_CONFIG, "{}"),
        (runs.PERPLEXITY_CONFIG, "none"),
    ],
)
def test_a_spoilt_perplexity(tmp_path: Path, name: str, text: str) -> None:
    run(tmp_path)
    list(measure_perplexity(tmp_path, WordCount()))  # type: ignore[arg-type]
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="not the perplexity of a run"):
        runs.read_run(tmp_path)


def test_finding_and_reading_runs(tmp_path: Path) -> None:
    run(tmp_path / "b")
    run(tmp_path / "a", "base")
    assert runs.find_runs([tmp_path]) == [tmp_path / "b", tmp_path / "a"]  # as they were made
    assert runs.find_runs([tmp_path / "a", tmp_path]) == [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(InputError, match="no run here"):
        runs.find_runs([tmp_path / "none"])
    (tmp_path / "a" / runs.RECORDS).write_text("")
    with pytest.raises(InputError, match="no finished records yet"):
        runs.read_run(tmp_path / "a")
    record = json.loads((tmp_path / "b" / runs.RECORDS).read_text().splitlines()[0])
    record["toxicity_scores"].pop()
    (tmp_path / "a" / runs.RECORDS).write_text(json.dumps(record) + "\n")
    with pytest.raises(InputError, match="has not one score a completion"):
        runs.read_run(tmp_path / "a")
    (tmp_path / "b" / runs.CONFIG).write_text("[]")
    with pytest.raises(InputError, match="not the configuration of a run"):
        runs.read_run(tmp_path / "b")
