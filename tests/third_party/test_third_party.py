"""A package that is installed adds one of each kind, and the shell can use them all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import SEVERAL
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


COMMANDS = {
    "methods": ("methods",),
    "a strategy": ("methods", "elsewhere-jumps"),
    "a scorer": ("methods", "elsewhere-scorer"),
    "help of run": ("run", "--help"),
    "help of eval": ("eval", "--help"),
    "run": (
        *("run", "-i", "prompts.jsonl", "-o", "out.jsonl"),
        *("--engine", "elsewhere-engine", "--engine-option", "word=splendid"),
        *("--scorer", "elsewhere-scorer:limit=8", "--strategy", "elsewhere-jumps:count=3"),
    ),
    "fit": ("fit", "elsewhere-bias", "--data", "labelled.jsonl", "--out", "fitted"),
    "eval": (
        *("eval", "prompts.jsonl", "--out", "runs", "--artefacts", "fitted", "--trials", "1"),
        *("--methods", "base,elsewhere-jumps:count=2,elsewhere-bias:scale=3"),
        *("--reference", "none", "--judges", "elsewhere-scorer:limit=50"),
        *("--max-new-tokens", "5"),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the commands run."""
    folder = tmp_path_factory.mktemp("commands")
    rows = [{"id": i, "prompt": f"prompt number {i}"} for i in range(3)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = [
        {"text": f"a {kind} text number {i}", "toxicity": float(kind == "rude")}
        for i in range(300)
        for kind in ("rude", "kind")
    ]
    (folder / "labelled.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    return folder


@pytest.fixture(scope="module")
def printed(site: Path, folder: Path) -> dict[str, str]:
    """What each of the commands prints, in a process that has the package."""
    root = Path(__file__).parents[2]  # of the engine that the package extends
    path = os.pathsep.join([str(site), str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-c", SEVERAL],
        input=json.dumps(list(COMMANDS.values())),
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    output = {}
    for name, (code, out, err) in zip(COMMANDS, json.loads(process.stdout), strict=True):
        assert code == 0, (name, err)
        output[name] = out + err
    return output


@pytest.mark.slow
def test_what_is_installed_is_listed(printed: dict[str, str]) -> None:
    assert all(name in printed["methods"] for name in NAMES)
    assert "count=4" in printed["a strategy"]
    assert "Words of a text that scores 1." in printed["a scorer"]
    # Lines break at hyphens, too.
    run_help, eval_help = ("".join(printed[f"help of {name}"].split()) for name in ("run", "eval"))
    assert all(name in run_help for name in NAMES[:3])
    assert all(name in eval_help for name in NAMES)


@pytest.mark.slow
@pytest.mark.usefixtures("printed")
def test_engine_scorer_and_strategy_run(folder: Path) -> None:
    trials = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert {trial["text"] for trial in trials} == {"splendid " * 5}
    assert {trial["toxicity"] for trial in trials} == {5 / 8}
    assert {trial["evaluations"] for trial in trials} == {1 + 3}
    config = json.loads((folder / "out.jsonl.config.json").read_text())
    assert config["settings"]["strategy"] == "elsewhere-jumps:count=3"


@pytest.mark.slow
@pytest.mark.usefixtures("printed")
def test_a_baseline_is_fitted_and_evaluated(folder: Path) -> None:
    runs = {
        path.name: read_run(path)
        for path in (folder / "runs").iterdir()
        if path.is_dir() and (path / "records.jsonl").exists()
    }
    assert len(runs) == 3
    (base,) = (run for name, run in runs.items() if name.startswith("base"))
    (bias,) = (run for name, run in runs.items() if name.startswith("elsewhere-bias"))
    texts = [[trial.text for _, trial in run.trials] for run in (bias, base)]
    assert texts[0] == texts[1]
    assert all("length@1:50" in trial.judge_scores for _, trial in bias.trials)
