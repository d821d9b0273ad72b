"""A package that is installed adds one of each kind, and the shell can use them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import SEVERAL
from tests.scripts.loading import ROOT
from tide.evaluation import read_run

ENTRY_POINTS = """
[tide.engines]
elsewhere-engine = tests.plugins.elsewhere:Scribbler
[tide.scorers]
elsewhere-scorer = tests.scorers.test_load:Tuned
[tide.strategies]
elsewhere-jumps = examples.own_strategy:OneJump
[tide.baselines]
elsewhere-bias = tests.plugins.elsewhere:Bias
"""
COMMANDS = {
    "methods": ("methods",),
    "run": (
        *("run", "-i", "prompts.jsonl", "-o", "out.jsonl"),
        *("--engine", "elsewhere-engine", "--engine-option", "word=splendid"),
        *("--scorer", "elsewhere-scorer:level=0.6", "--strategy", "elsewhere-jumps:count=3"),
    ),
    "fit": ("fit", "elsewhere-bias", "--data", "labelled.jsonl", "--out", "fitted"),
    "eval": (
        *("eval", "prompts.jsonl", "--out", "runs", "--artefacts", "fitted", "--trials", "1"),
        *("--methods", "base,elsewhere-jumps,elsewhere-bias:scale=3"),
        *("--reference", "none", "--judges", "elsewhere-scorer:level=0.75"),
        *("--max-new-tokens", "5"),
    ),
}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def printed(site: Path, folder: Path) -> dict[str, str]:
    """What each of the commands prints, in a process that has the package."""
    path = os.pathsep.join(filter(None, [str(site), str(ROOT), os.environ.get("PYTHONPATH")]))
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
def test_shell_lists_runs_fits_and_evaluates_what_is_installed(tmp_path: Path) -> None:
    info = tmp_path / "site" / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    prompts = [{"id": i, "prompt": f"prompt number {i}"} for i in range(3)]
    write_lines(tmp_path / "prompts.jsonl", prompts)
    labelled = [
        {"text": f"a {kind} text number {i}", "toxicity": toxicity}
        for kind, toxicity in (("rude", 1.0), ("kind", 0.0))
        for i in range(300)
    ]
    write_lines(tmp_path / "labelled.jsonl", labelled)
    shown = printed(tmp_path / "site", tmp_path)

    for kind in ("engine", "scorer", "jumps", "bias"):
        assert f"elsewhere-{kind}" in shown["methods"]

    trials = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {trial["text"] for trial in trials} == {"splendid " * 5}
    assert {trial["toxicity"] for trial in trials} == {0.6}
    assert {trial["evaluations"] for trial in trials} == {1 + 3}

    folders = sorted(path.parent for path in (tmp_path / "runs").glob("*/records.jsonl"))
    base, bias, _ = map(read_run, folders)
    assert [trial.text for _, trial in bias.trials] == [trial.text for _, trial in base.trials]
    assert all("tuned:level=0.75" in trial.judge_scores for _, trial in bias.trials)
