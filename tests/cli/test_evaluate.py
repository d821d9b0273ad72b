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


def test_eval_options_reach_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option is declared once, so its name has to be that of a parameter."""
    known = set(inspect.signature(evaluation.evaluate).parameters)
    assert set(Evaluation().keywords()) | {"benchmark", "engine_options", "progress"} == known - {
        "overrides"
    }
    called: dict[str, Any] = {}

    def evaluated(*_: Any, **arguments: Any) -> None:
        called.update(arguments)
        raise InputError("called")

    monkeypatch.setattr(evaluation, "evaluate", evaluated)
    options = ["--limit", 3, "--judges", "lexicon", "--temperature", 0, "--device", "cpu"]
    options += ["--methods", "base,tide:mu=1", "--methods", "backtrack"]
    assert tide("eval", "mine.txt", *options) == 1
    assert (called["limit"], called["temperature"]) == (3, 0.0)
    assert called["judges"] == ["lexicon"]
    assert called["methods"] == ["base", "tide:mu=1", "backtrack"]
    assert (called["reference"], called["engine_options"]) == ("auto", {"device": "cpu"})
