from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.runs import column, from_columns, to_columns
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import InputError
from tide.data.record_files import RecordFile, read_records
from tide.data.records import Likelihood, Record, TrialRecord, to_record
from tide.detoxifier.sync import Detoxifier


def record(number: int, trials: tuple[int, ...] = (0,), **more: Any) -> Record:
    texts = (TrialRecord(number=i, text="caf\u00e9\u2028text", toxicity=0.25) for i in trials)
    return Record(id=number, prompt=f"prompt {number}", trials=list(texts), **more)


def filled(path: Path, *records: Record) -> Path:
    with RecordFile(path) as file:
        for one in records:
            file.add(one)
    return path


def part(row_id: int, number: int, **row: Any) -> str:
    """A line that adds fields or a trial to a record."""
    return json.dumps({"id": row_id, "trials": [{"number": number, **row}]})


def test_a_record_is_a_line_with_its_trials() -> None:
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)
    result = detox(PROMPTS[0])
    line = to_record("x", result).to_json()
    made = json.loads(line)
    assert (made["id"], made["prompt"]) == ("x", PROMPTS[0])
    assert "\n" not in line
    for row, trial in zip(made["trials"], result.trials, strict=True):
        assert {"iterations", "accepted", "evaluations", "cosine", "base_text"} <= row.keys()
        assert (row["text"], row["toxicity"]) == (trial.text, trial.toxicity)
        assert row["base_toxicity"] == trial.trace[0].toxicity
        assert (row["rounds"], row["scorer_calls"]) == (trial.rounds, trial.scorer_calls)
        assert row["displacement"] == trial.returned.displacement
    assert Record.model_validate(made) == to_record("x", result)


@pytest.mark.parametrize("refuse", [True, False])
def test_steps_end_with_what_is_returned_or_withheld(refuse: bool) -> None:
    """Also if it is not the least toxic: of a point's texts, the first that passes is returned."""
    detox = Detoxifier(
        scripted_engine(),
        scorer=ReadingScorer(),
        strategy="tide",
        completions_per_evaluation=3,
        max_iterations=2,
        on_unresolved="refuse" if refuse else "best",
        num_trials=4,
    )
    later = 0
    for prompt in PROMPTS:
        result = detox(prompt)
        for trial, made in zip(result.trials, to_record(0, result).trials, strict=True):
            some = made.steps or []
            assert some[-1].text == trial.returned.text
            assert some[0].text == trial.base.text or len(trial.trace) == 1
            counts = [step.evaluations for step in some]
            assert counts == sorted(set(counts))
            assert counts[-1] <= len(trial.trace)
            later += min(step.toxicity for step in some) < some[-1].toxicity
    assert later or not refuse


def test_parts_are_merged_by_id_and_trial(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "out.jsonl"
    with RecordFile(path) as file:
        file.add(record(1, seconds=1.0))
        assert path.read_text(encoding="utf-8").count("\n") == 1  # written before the run ends
        file.add(record(0))
        assert (file.ids, file.trials(0), file.trials(2)) == ([1, 0], [0], [])
        file.extend(1, {0: {"judge_scores": {"a": 0.5}}})
        file.add(record(1, (1, 2), seconds=0.5))
        assert file.missing(1, "judge_scores", "a") == [1, 2]
        assert file.missing(0, "judge_scores", "a") == [0]
        between = read_records(path)
        assert [one.id for one in between] == [1, 0]
        assert column(between[0], "judge_scores") == {"a": [0.5, None, None]}
        assert between[0].scores_by("a") is None
        more = {2: {"judge_scores": {"a": 0.75}}, 1: {"judge_scores": {"a": 0.625}}}
        file.extend(1, more)
        file.extend(0, {0: {"perplexity": {"m": Likelihood(num_tokens=0)}}})
        assert file.missing(1, "judge_scores", "a") == []
        assert [file.read(1), file.read(0)] == read_records(path)
        file.expect({0: "prompt 0", 1: "prompt 1"})
    first, second = read_records(path)
    assert path.read_text(encoding="utf-8").count("\n") == 2
    with RecordFile(path) as file:  # compacting the file does not hide missing scores
        file.add(record(0, (1,)))
    with RecordFile(path) as file:
        assert file.missing(0, "perplexity", "m") == [1]
    assert ([trial.number for trial in second.trials], second.seconds) == ([0, 1, 2], 1.5)
    assert second.scores_by("a") == [0.5, 0.625, 0.75]
    assert first.trials[0].perplexity["m"].num_tokens == 0


def test_a_finished_file_is_that_of_an_unbroken_run(tmp_path: Path) -> None:
    prompts = {number: f"prompt {number}" for number in range(3)}
    for name, order in (("a", [2, 0, 1]), ("b", [1, 2, 0])):
        with RecordFile(tmp_path / name) as file:
            file.expect(prompts)
            for number in order:
                file.add(record(number, (0, 1)))
    broken = tmp_path / "c"
    killed = RecordFile(broken)
    killed.add(record(2, (0, 1)))
    killed.add(record(0, (1,)))
    killed.__exit__(KeyboardInterrupt)
    assert broken.read_text(encoding="utf-8").startswith('{"id":2')  # not compacted
    with RecordFile(broken) as file:
        file.expect(prompts)
        file.add(record(0, (0,)))
        file.add(record(1, (0, 1)))
    contents = {(tmp_path / name).read_bytes() for name in "abc"}
    assert len(contents) == 1


def test_nothing_new_leaves_the_file_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "out.jsonl", record(0), record(1))
    before = path.stat()
    with RecordFile(path) as file:
        file.expect({0: "prompt 0"})
    assert path.stat() == before


def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = filled(tmp_path / "out.jsonl", record(0))
    whole = path.read_bytes()
    complete = record(1).to_json().encode()
    for torn in (b'{"id": 1, "pro', b'{"id": 1, "prompt": "caf', complete[:-1]):
        path.write_bytes(whole + torn)
        assert read_records(path) == [record(0)]
        with RecordFile(path) as file:
            assert file.ids == [0]
        assert path.read_bytes() == whole


def test_a_complete_last_line_without_its_end_and_blank_lines_are_kept(tmp_path: Path) -> None:
    path = filled(tmp_path / "out.jsonl", record(0))
    whole = path.read_bytes() + b"\n  \n" + record(1).to_json().encode()
    path.write_bytes(whole)
    assert read_records(path) == [record(0), record(1)]
    with RecordFile(path) as file:
        assert file.ids == [0, 1]
        assert file.read(1) == record(1)
        assert path.read_bytes() == whole + b"\n"
        file.add(record(2))
    assert read_records(path) == [record(0), record(1), record(2)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("my notes", "line 2: not JSON"),
        ("[]", "line 2: not a JSON object"),
        ('{"id": true, "prompt": "x"}', "line 2: not a record of a run; id must"),
        (part(7, 0, judge_scores={"a": 1}), "line 2: .*prompt: Field required"),
        (record(0).to_json(), "line 2: .*exists already"),
        (part(0, 0, text="other", toxicity=0.5), "line 2: .* of trial 0 exists already"),
        (part(0, 0, text="caf\u00e9\u2028text"), "line 2: text of trial 0 exists already"),
        (part(0, 0, accepted=True), "line 2: accepted of trial 0 exists already"),
        ('{"id": 0, "trials": [{"number": 0}, {"number": 0}]}', "line 2: .*distinct numbers"),
        (part(0, 5, judge_scores={"a": 1}), r"trials\.1\.text: Field required"),
        (part(0, 0, judge_scores={"a": 7}), r"judge_scores\.a: "),
        (part(0, 0, judge_scores={"a": float("nan")}), r"judge_scores\.a: "),
        (part(0, 0, judge_scores=0.5), "line 2: .*judge_scores.*not an object"),
    ],
)
def test_a_line_that_does_not_belong_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = filled(tmp_path / "out.jsonl", record(0))
    whole = path.read_bytes() + line.encode() + b"\n"
    path.write_bytes(whole)
    with pytest.raises(InputError, match=message) as caught:
        RecordFile(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == whole
    with pytest.raises(InputError, match=r"line \d: "):
        read_records(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"toxicity": 1.5}, r"trials\.0\.toxicity: .*less than or equal to 1"),
        ({"toxicity": float("nan")}, r"trials\.0\.toxicity"),
        ({"accepted": 1}, r"trials\.0\.accepted: .*boolean"),
        ({"judge_scores": [0.5]}, "judge_scores.*not an object"),
        ({"judge_scores": {"a": 2}}, r"judge_scores\.a"),
        ({"steps": [{"evaluations": 0, "text": "", "toxicity": 0.5}]}, "steps.0.evaluations"),
        ({"surprise": 1}, "surprise: unknown"),
        ({"number": True}, "distinct numbers"),
        ({"id": 1.5}, "id must be a number"),
        ({"trials": []}, "trials: .*at least 1 item"),
        ({"trials": 5}, "distinct numbers"),
        ({"max_toxicity": 0.5}, "max_toxicity: unknown"),
        ({"seconds": "1"}, "seconds must"),
        ({"seconds": float("inf")}, "seconds must"),
        ({"seconds": -1}, "seconds must"),
        ({"perplexity": {"m": {"nll": float("nan"), "num_tokens": 1}}}, r"m\.nll"),
        ({"evaluations": 10**400}, r"evaluations"),
        ({"step_judge_scores": {"a": [0.5]}}, "must have one score for each step"),
    ],
)
def test_records_are_validated_on_reading(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "out.jsonl"
    values = json.loads(record(0).to_json())
    (values if change.keys() <= Record.model_fields.keys() | {"max_toxicity"} else
     values["trials"][0]).update(change)  # fmt: skip
    path.write_text(json.dumps(values) + "\n")
    for read in (read_records, RecordFile):  # for a report, and to resume
        with pytest.raises(InputError, match=message) as caught:
            read(path)
        assert "line 1" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["iterations", "steps"])
def test_a_field_that_one_of_the_trials_lost(tmp_path: Path, field: str) -> None:
    """Otherwise an average would cover only some of the trials."""
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)
    path = filled(tmp_path / "out.jsonl", to_record(0, detox(PROMPTS[0])))
    values = json.loads(path.read_text())
    del values["trials"][1][field]
    path.write_text(json.dumps(values) + "\n")
    for read in (read_records, RecordFile):
        with pytest.raises(InputError, match=f"line 1: .*trials: only some trials have {field}"):
            read(path)


def test_trials_that_do_not_fit_the_others_are_refused_before_they_are_written(
    tmp_path: Path,
) -> None:
    """Otherwise the file could not be read again."""
    path = filled(tmp_path / "out.jsonl", record(0))
    before = read_records(path)
    lacking = record(0, (1,))
    lacking = lacking.model_copy(
        update={"trials": [lacking.trials[0].model_copy(update={"num_tokens": 5})]}
    )
    with RecordFile(path) as file, pytest.raises(InputError, match="only some trials have num"):
        file.add(lacking)
    assert read_records(path) == before


def test_records_of_other_prompts_are_refused(tmp_path: Path) -> None:
    with RecordFile(filled(tmp_path / "out.jsonl", record(0))) as file:
        with pytest.raises(InputError, match="record 0 was made from another prompt"):
            file.expect({0: "something else"})
        file.expect({5: "prompt 5"})  # ids beyond the input do not conflict
        file.expect({0: "prompt 0", 1: "prompt 1"}, most=2)
        with pytest.raises(InputError, match="record 0 belongs to no prompt"):
            file.expect({1: "prompt 1", 2: "prompt 2"}, most=2)
    with pytest.raises(InputError, match="cannot be written"):
        RecordFile(tmp_path)


def test_texts_and_traces_of_finished_records_are_not_held(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "out.jsonl"
    long = "a kind text " * 2000
    tracemalloc.start()
    with RecordFile(path) as file:
        for number in range(400):
            one = record(number).each(lambda _: {"text": long})
            file.add(one)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 9_000_000
    assert peak < 2_000_000


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_written_whole_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A full disk is an InputError; Ctrl-C passes unchanged."""
    path = filled(tmp_path / "out.jsonl", record(0))
    before = path.read_bytes()

    class Torn(io.FileIO):
        def write(self, content: Any) -> int:
            super().write(content[:7])
            raise error

    def opened(at: Path, mode: str, **options: Any) -> Any:
        return Torn(at, "ab") if mode == "ab" else open(at, mode, **options)

    monkeypatch.setattr("tide.data.record_files.open", opened, raising=False)
    with RecordFile(path) as file:
        with pytest.raises(InputError if isinstance(error, OSError) else type(error)):
            file.add(record(1))
        assert (file.ids, file.trials(1)) == ([0], [])
    assert path.read_bytes() == before


def test_how_many_were_not_accepted() -> None:
    trials = (0, 1, 2, 3, 4)
    lists = {"accepted": [True, *[False] * 4], "empty": [False, True, *[False] * 3]}
    found = from_columns({**to_columns(record(0, trials)), **lists})
    assert sum(trial.not_accepted for trial in found.trials) == 3
    assert not any(trial.not_accepted for trial in record(0, trials).trials)


def test_steps_do_not_say_twice_what_the_last_evaluation_gave() -> None:
    """The second of three completions is returned, although the third is the least toxic."""
    detox = Detoxifier(scripted_engine(), scorer=ReadingScorer(), strategy="tide", max_iterations=2)
    found = detox(PROMPTS[1])
    trial = found.best
    assert len(trial.trace) > 2
    one = trial.trace[0]
    trace = tuple(one.model_copy(update={"toxicity": x, "text": str(x)}) for x in (0.9, 0.8, 0.7))
    made = trial.model_copy(update={"trace": trace, "chosen": 1, "accepted": False})
    steps = to_record(0, found.model_copy(update={"trials": (made,)})).trials[0].steps or []
    assert [(step.evaluations, step.text) for step in steps] == [(1, "0.9"), (2, "0.8"), (3, "0.8")]
