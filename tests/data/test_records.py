from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.runs import column
from tests.fakes import FakeScorer
from tests.worlds import PROMPTS, scripted_engine
from tests.worlds import read as read_toxicity
from tide.core.errors import InputError
from tide.data.records import (
    JudgeScore,
    PerplexityScore,
    Record,
    RecordFile,
    TrialRecord,
    read_records,
    to_record,
)
from tide.detoxifier.sync import Detoxifier
from tide.scorers.base import Attributed


def record(number: int, trials: tuple[int, ...] = (0,), **more: Any) -> Record:
    """more: fields of every trial."""
    made = [
        TrialRecord(number=i, text="caf\u00e9\u2028text", toxicity=0.25, **more) for i in trials
    ]
    return Record(id=number, prompt=f"prompt {number}", trials=made)


def opened(path: Path, *records: Record, **more: Any) -> RecordFile:
    """The file, with `records` added."""
    path.parent.mkdir(exist_ok=True)
    file = RecordFile(path, path.with_name("scores.jsonl"), **more)
    for each in records:
        file.add(each)
    return file


def read(path: Path) -> list[Record]:
    return read_records(path, path.with_name("scores.jsonl"))


def line_of(row: int, **more: Any) -> dict[str, Any]:
    (line,) = record(row).lines()
    return {**json.loads(line), **more}


def test_record_has_a_line_per_trial() -> None:
    def halved(texts: list[str]) -> Attributed:
        scores = np.array(read_toxicity(texts))
        return Attributed(scores, {"half": scores / 2})

    scorer = FakeScorer(attributes=("half",), score_attributes=halved)
    result = Detoxifier(scripted_engine(), scorer=scorer, num_trials=2)(PROMPTS[0])
    for evaluation in result.trace:
        expected = {} if evaluation.empty else {"half": evaluation.toxicity / 2}
        assert evaluation.attributes == pytest.approx(expected)
    lines = to_record("x", result, seconds=3.0, group="odd").lines()
    for line, trial in zip(lines, result.trials, strict=True):
        row = json.loads(line)
        assert line.endswith(b"\n")
        assert (row["id"], row["prompt"], row["group"]) == ("x", PROMPTS[0], "odd")
        assert {"iterations", "accepted", "evaluations", "cosine", "base_text"} <= row.keys()
        assert (row["text"], row["toxicity"]) == (trial.text, trial.toxicity)
        assert row["attributes"] == {"half": trial.toxicity / 2}
        assert row["base_toxicity"] == trial.trace[0].toxicity
        assert (row["rounds"], row["scorer_calls"]) == (trial.rounds, trial.scorer_calls)
        assert row["forward_tokens"] == trial.generated_tokens + trial.read_tokens
        assert row["evaluations"] == len(row["trace"])
        assert row["displacement"] == trial.returned.displacement
        assert row["seconds"] == 1.5


def judged(row_id: int, *scores: tuple[int, float]) -> list[JudgeScore]:
    """Scores of the judge `a`, each with the number of its trial."""
    return [JudgeScore(id=row_id, number=n, judge="a", score=score) for n, score in scores]


def test_reading_joins_trials_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "out.jsonl"
    file = opened(path, record(1, seconds=1.0))
    assert path.read_text(encoding="utf-8").count("\n") == 1  # written before the run ends
    file.add(record(0))
    assert (list(file.records), file.trials(0), file.trials(2)) == ([1, 0], [0], [])
    file.add_scores(1, judged(1, (0, 0.5)))
    file.add(record(1, (2, 1), seconds=0.5))
    between = read(path)
    assert [each.id for each in between] == [0, 1]
    assert column(between[1], "judge_scores") == [{"a": 0.5}, {}, {}]
    file.add_scores(1, judged(1, (2, 0.75), (1, 0.625)))
    file.add_scores(0, [PerplexityScore(id=0, number=0, reference="m", num_tokens=0)])
    assert [file.records[0], file.records[1]] == read(path)
    first, second = read(path)
    assert [trial.number for trial in second.trials] == [0, 1, 2]
    assert sum(trial.seconds or 0 for trial in second.trials) == 2.0
    assert [trial.judge_scores["a"] for trial in second.trials] == [0.5, 0.625, 0.75]
    assert first.trials[0].perplexity["m"].num_tokens == 0
    assert not any(column(read_records(path)[1], "judge_scores"))
    assert path.read_text(encoding="utf-8").count("\n") == 4


def test_overwriting_deletes_records_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    opened(path, record(0), record(1)).add_scores(0, judged(0, (0, 0.5)))
    file = opened(path, overwrite=True)
    assert (read(path), file.records) == ([], {})
    file.add(record(0))
    assert read(path) == [record(0)]


def test_half_written_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    opened(path, record(0)).add_scores(0, judged(0, (0, 0.5)))
    expected = read(path)
    (more,) = record(1).lines()
    score = b'{"id":0,"number":0,"judge":"b","score":0.5}\n'
    for file_path, line in ((path, more), (path.with_name("scores.jsonl"), score)):
        whole = file_path.read_bytes()
        for length in (1, 20, len(line) - 2):
            file_path.write_bytes(whole + line[:length])
            assert read(path) == expected
            assert list(opened(path).records.values()) == expected
            assert file_path.read_bytes() == whole


def test_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    """As a script writes it that joins lines; a judge only adds scores to it."""
    path = tmp_path / "out.jsonl"
    opened(path, record(0), record(1))
    whole = path.read_bytes()
    path.write_bytes(whole.removesuffix(b"\n"))
    file = opened(path)
    assert path.read_bytes() == whole
    file.add(record(2))
    assert read(path) == [record(0), record(1), record(2)]


SCORE = {"id": 0, "number": 0, "judge": "a", "score": 0.5}


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("out", "my notes", "line 2: not JSON"),
        ("out", line_of(1, id=True), "line 2: not a record of a run: id"),
        ("out", line_of(1, toxicity=1.5), r"line 2: .*toxicity: .*less than or equal to 1"),
        ("out", line_of(1, toxicity=float("nan")), "toxicity"),
        ("out", line_of(1, surprise=1), "surprise: unknown"),
        ("scores", {**SCORE, "score": float("nan")}, "line 2: not a score of a run: .*score"),
    ],
)
def test_invalid_line_is_named(tmp_path: Path, name: str, line: Any, message: str) -> None:
    path = tmp_path / "out.jsonl"
    opened(path, record(0)).add_scores(0, judged(0, (0, 0.5)))
    damaged = tmp_path / f"{name}.jsonl"
    text = line if isinstance(line, str) else json.dumps(line)
    whole = damaged.read_bytes() + text.encode() + b"\n"
    damaged.write_bytes(whole)
    for reads in (read, opened):  # for a report, and to resume
        with pytest.raises(InputError, match=message):
            reads(path)
    assert damaged.read_bytes() == whole


def test_full_disk_keeps_earlier_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    file = opened(path, record(0))

    class Full(io.FileIO):
        def write(self, content: Any) -> int:
            super().write(content[:7])
            raise OSError(28, "No space left on device")

    def full(path: Path, mode: str) -> Full:
        return Full(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(InputError, match="No space left on device"):
            file.add(record(1))
    assert file.trials(1) == []
    assert read(path) == [record(0)]
    opened(path, record(1))
    assert read(path) == [record(0), record(1)]
