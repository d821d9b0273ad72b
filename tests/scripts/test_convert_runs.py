from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError
from tide.evaluation import read_run, report

CONVERT = runpy.run_path(str(Path(__file__).parents[2] / "scripts/convert_runs.py"))["convert"]
STEPS = [[{"evaluations": 1, "text": "a", "toxicity": 0.5, "judge_scores": {"j@1": 0.25}}]]
RECORD = {"id": 0, "prompt": "p", "completions": ["a"], "toxicity_scores": [0.5]}


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value) + "\n")


def test_a_run_folder(tmp_path: Path) -> None:
    run = tmp_path / "tide"
    settings = {"strategy": "tide", "num_trials": 1, "seed": 3, "empty_policy": "zero"}
    config = {"format": 1, "method": "tide", "scorer": "s@1", "judges": ["j@1"], "model": "m"}
    write(run / "config.json", config | {"settings": settings})
    write(run / "records.jsonl", RECORD | {"judge_scores": {"j@1": [0.25]}, "steps": STEPS})
    write(run / "perplexity.config.json", {"reference": "larger"})
    write(run / "perplexity.jsonl", {"id": 0, "nll": [1.5], "num_tokens": [4]})
    with pytest.raises(InputError, match=r"convert_runs\.py") as caught:
        read_run(run)
    assert "\n" not in str(caught.value)
    CONVERT(run)
    (record,) = read_run(run).records
    (trial,) = record.trials
    assert record.scores_by("j@1") == trial.step_judge_scores["j@1"][:1] == [0.25]
    assert trial.perplexity["larger"].num_tokens == 4
    (summary,) = report(run, draw=False).summaries
    assert summary.toxicity["j@1"]["max"].value == 0.25


def test_a_file_of_records(tmp_path: Path) -> None:
    run = tmp_path / "out.jsonl"
    config = {"model": "m", "scorer": "s@1", "judge": "j@1", "settings": {"strategy": "fast"}}
    write(tmp_path / "out.jsonl.config.json", config)
    write(run, RECORD | {"judge_scores": [0.25], "base_judge_scores": [0.75]})
    with pytest.raises(InputError, match=r"convert_runs\.py"):
        report(run)
    CONVERT(run)
    assert report(run, draw=False).summaries[0].method == "fast"
