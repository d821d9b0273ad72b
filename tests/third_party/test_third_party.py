"""A package that is installed adds one of each kind, and the shell can use them all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tide.evaluation import read_run

NAMES = ("elsewhere-engine", "elsewhere-scorer", "elsewhere-jumps", "elsewhere-bias")
FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n",
    "entry_points.txt": (
        "[tide.engines]\nelsewhere-engine = elsewhere:Scribbler\n"
        "[tide.scorers]\nelsewhere-scorer = elsewhere:LengthScorer\n"
        "[tide.strategies]\nelsewhere-jumps = elsewhere:Jumps\n"
        "[tide.baselines]\nelsewhere-bias = elsewhere:Bias\n"
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the package."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).parent / "elsewhere.py", folder)
    info = folder / "elsewhere-1.0.dist-info"
    info.mkdir()
    for name, text in FILES.items():
        (info / name).write_text(text)
    return folder


@pytest.fixture
def tide(site: Path, tmp_path: Path) -> object:
    """Runs `tide ...` in a process that has the package, in an empty folder."""
    root = Path(__file__).parents[2]  # of the engine that the package extends
    path = os.pathsep.join([str(site), str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    rows = [{"id": i, "prompt": f"prompt number {i}"} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = [
        {"text": f"a {kind} text number {i}", "toxicity": float(kind == "rude")}
        for i in range(300)
        for kind in ("rude", "kind")
    ]
    (tmp_path / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "tide", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_what_is_installed_is_listed(tide) -> None:  # type: ignore[no-untyped-def]
    listed = tide("methods")
    assert all(name in listed for name in NAMES)
    assert "count=4" in tide("methods", "elsewhere-jumps")
    assert "Words of a text that scores 1." in tide("methods", "elsewhere-scorer")
    # Lines break at hyphens, too.
    run_help, eval_help = ("".join(tide(one, "--help").split()) for one in ("run", "eval"))
    assert all(name in run_help for name in NAMES[:3])
    assert all(name in eval_help for name in NAMES)


@pytest.mark.slow
def test_engine_scorer_and_strategy_run(tide, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tide(
        *("run", "-i", "prompts.jsonl", "-o", "out.jsonl"),
        *("--engine", "elsewhere-engine", "--engine-option", "word=splendid"),
        *("--scorer", "elsewhere-scorer:limit=8", "--strategy", "elsewhere-jumps:count=3"),
    )
    trials = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {trial["text"] for trial in trials} == {"splendid " * 5}
    assert {trial["toxicity"] for trial in trials} == {5 / 8}
    assert {trial["evaluations"] for trial in trials} == {1 + 3}
    config = json.loads((tmp_path / "out.jsonl.config.json").read_text())
    assert config["settings"]["strategy"] == "elsewhere-jumps:count=3"


@pytest.mark.slow
def test_a_baseline_is_fitted_and_evaluated(tide, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    tide("fit", "elsewhere-bias", "--data", "labelled.jsonl", "--out", "fitted")
    tide(
        *("eval", "prompts.jsonl", "--out", "runs", "--artefacts", "fitted", "--trials", "1"),
        *(
            "--methods",
            "base,elsewhere-jumps:count=2,elsewhere-bias:scale=3",
            "--reference",
            "none",
        ),
        *("--judges", "elsewhere-scorer:limit=50", "--max-new-tokens", "5"),
    )
    read = {
        folder.name: read_run(folder)
        for folder in (tmp_path / "runs").iterdir()
        if folder.is_dir() and (folder / "records.jsonl").exists()
    }
    assert len(read) == 3
    (base,) = (run for name, run in read.items() if name.startswith("base"))
    (bias,) = (run for name, run in read.items() if name.startswith("elsewhere-bias"))
    texts = [[trial.text for _, trial in run.trials] for run in (bias, base)]
    assert texts[0] == texts[1]
    assert all("length@1:50" in trial.judge_scores for _, trial in bias.trials)
