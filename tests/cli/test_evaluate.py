from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_run import PROMPTS
from tests.command import tide
from tide import evaluation
from tide.cli.evaluate import Evaluation
from tide.core.errors import InputError
from tide.evaluation.runs import read_run


@pytest.fixture
def benchmark_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(PROMPTS) + "\n")
    return path


def test_eval_runs_methods(
    benchmark_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    command = [
        "eval", benchmark_file, "--methods", "base,random-walk,resample:temperature=1.0|0.5",
        "-o", out,
        "--judges", "profanity-check", "--trials", 2,
    ]  # fmt: skip
    assert tide(*command) == 0
    runs = {folder.name: read_run(folder) for folder in out.iterdir() if folder.is_dir()}
    resampled = {"resample-temperature=1", "resample-temperature=0.5"}
    assert set(runs) == {"base", "random-walk", *resampled}
    shown = " ".join(capsys.readouterr().out.split())
    assert "the search's scorer" in shown
    assert "a judge" in shown
    for run in runs.values():
        assert run.path is not None
        assert [len(record.trials) for record in run.records] == [2] * len(PROMPTS)
        assert run.config["model"] == "pocket"
        assert run.references == ["pocket-reference"]
        assert all(set(t.perplexity) == {"pocket-reference"} for r in run.records for t in r.trials)
    assert runs["resample-temperature=1"].config["settings"]["temperature"] == 1.0


HERE = ("--engine", "scripted", "--scorer", "reading", "--reference", "none", "--trials", 1)


def test_eval_options_reach_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option is declared once, so its name has to be that of a parameter."""
    known = set(inspect.signature(evaluation.evaluate).parameters)
    assert set(Evaluation().keywords()) | {"benchmark", "engine_options", "progress"} == known - {
        "overrides"
    }
    called: dict[str, Any] = {}

    def evaluated(*_: Any, **given: Any) -> None:
        called.update(given)
        raise InputError("called")

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    options = [
        "--limit",
        3,
        "--reference-option",
        "n=4",
        "--judges",
        "lexicon",
        "--temperature",
        0,
    ]
    assert tide("eval", "mine.txt", *options, "--device", "cpu") == 1
    assert (called["limit"], called["temperature"]) == (3, 0.0)
    assert called["judges"] == ["lexicon"]
    assert (called["reference"], called["reference_options"]) == ("auto", {"n": 4})
    assert called["engine_options"] == {"device": "cpu"}
