from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_report import refused
from tests.cli.test_run import records
from tests.command import tide
from tests.evaluation.test_preferences import OWN, REPAIRED, searched
from tide.core.text import is_degenerate


def test_repairs_of_a_run_become_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tide run` and `tide eval` write the records; what was accepted in them is what is chosen."""
    prompts, run = tmp_path / "prompts.txt", tmp_path / "run.jsonl"
    texts = ["I told him to shut the", "What a load of", "The weather today is", "Shut up, you"]
    prompts.write_text("\n".join(texts))
    shared = ("--input", prompts, "--trials", 2)
    assert tide("run", *shared, "-o", run) == 0
    trials = [(r["prompt"], trial) for r in records(run) for trial in r["trials"]]
    expected = {
        (prompt, one["text"], one["base_text"])
        for prompt, one in trials
        if one["base_toxicity"] >= 0.1 and one["accepted"] and not is_degenerate(one["text"])
    }
    assert expected
    capsys.readouterr()
    output = tmp_path / "pairs.jsonl"
    assert tide("export", run, "-o", output) == 0
    rows = records(output)
    assert {(one["prompt"], one["chosen"], one["rejected"]) for one in rows} == expected
    assert {type(one["blamed_at"]) for one in rows} == {int}
    counts = [int(word) for word in capsys.readouterr().err.split() if word.isdecimal()]
    assert (counts[0], sum(counts)) == (len(rows), len(trials))


def test_either_format_to_a_file_or_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output = searched(tmp_path / "runs/one", {}, {"accepted": False}), tmp_path / "a.jsonl"
    assert tide("export", run, "--format", "sft") == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"prompt": "They say", "completion": REPAIRED}
    assert "left out: not accepted" in told.err
    command = ("export", run, "-o", output)
    assert tide(*command) == 0
    (row,) = records(output)
    assert row == {"prompt": "They say", "chosen": REPAIRED, "rejected": OWN, "blamed_at": 18}
    capsys.readouterr()
    assert tide(*command) == 1
    assert "exists; write to another file, or use --overwrite" in refused(capsys)
    again = (*command, "--overwrite", "--format", "sft")
    assert tide(*again) == 0
    assert [one.keys() for one in records(output)] == [{"prompt", "completion"}]


def test_no_pair_is_an_error_and_leaves_the_output_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output = searched(tmp_path / "runs/one", {}), tmp_path / "a.jsonl"
    output.write_text("before\n")
    command = ("export", run, "-o", output, "--overwrite", "--margin", "0.9")
    assert tide(*command) == 1
    assert "no pair in them (1 below the margin)" in refused(capsys)
    assert output.read_text() == "before\n"


def test_what_is_read_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = searched(tmp_path / "runs/one", {})
    before = (run / "records.jsonl").read_bytes()
    for name in ("records.jsonl", "config.json"):
        command = ("export", run, "-o", run / name, "--overwrite")
        assert tide(*command) == 1
        assert "is also read as an input" in refused(capsys)
    assert (run / "records.jsonl").read_bytes() == before
    assert tide("export", tmp_path / "none") == 1
    assert "no run here" in refused(capsys)
