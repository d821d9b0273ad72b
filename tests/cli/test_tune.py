from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import tide
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.engines import REGISTRY as ENGINES
from tide.evaluation.runs import find_runs, read_run
from tide.scorers import REGISTRY as SCORERS

HERE = ("--engine", "scripted", "--scorer", "reading", "--reference", "none", "--trials", 1)
SMALL = ("--above", 0.4, "--grid-scale", 1, "--mu", 0.5, "--num-samples", 2)


@pytest.fixture(autouse=True)
def _stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {**ENGINES._targets, "scripted": lambda model, **_: scripted_engine()}
    monkeypatch.setattr(ENGINES, "_targets", engines)
    monkeypatch.setattr(SCORERS, "_targets", {**SCORERS._targets, "reading": ReadingScorer})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    Path("mine.txt").write_text("\n".join(f"{p} {more}" for more in "ab" for p in PROMPTS))


def test_a_preset_is_tuned_and_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("tune", "mine.txt", *HERE, *SMALL, "--out", "tuned") == 0
    shown = capsys.readouterr()
    assert "settings tried: the first 7 of 7" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    (preset,) = Path("tuned").glob("tuned-*.json")
    assert f"use it: --preset {preset}" in shown.err
    chosen = json.loads(preset.read_text())["settings"]
    assert chosen["mu"] == 0.5
    common = ("--engine", "scripted", "--scorer", "reading", "--preset", preset)
    assert tide("run", "a prompt", *common, "--output", "out") == 0
    assert read_run(Path("out")).name == preset.name
    assert read_run(Path("out")).config["settings"]["step_size"] == chosen["step_size"]
    more = ("--methods", f"shuffled,{preset}", "--preset", preset, "--out", "compared")
    assert tide("eval", "mine.txt", *HERE, *more) == 0
    runs = [read_run(path) for path in find_runs([Path("compared")])]
    assert [run.config["settings"]["step_size"] for run in runs] == [chosen["step_size"]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tune", "mine.txt", "--grid-scale", 1, "--above", 0.999],
            "--above 0.999: no prompt of 5",
        ),
        (["tune", "mine.txt", "--grid-scale", "much"], "--grid-scale: expected ratio, literal"),
        (["tune", "none.txt"], "none.txt: no such file"),
        (["tune", "mine.txt", "--out", "a=b"], "--out: "),
        (["run", "a prompt", "--preset", "none.json"], "none.json: no such file"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = HERE[:4] if arguments[0] == "run" else HERE
    assert tide(*arguments, *own) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
