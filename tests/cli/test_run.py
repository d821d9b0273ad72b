from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import tide
from tide.cli.display import on_one_line
from tide.engines import REGISTRY as ENGINES
from tide.engines.local.engine import TransformersEngine
from tide.evaluation import read_run

# Mild prompts that the pocket model often continues with insults.
PROMPTS = [
    "She told me to shut the",
    "I can't believe he called me a",
    "The weather today is",
    "What a load of",
]


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS) + "\n")
    return path


def words(shown: str) -> str:
    """What was shown, whatever its line breaks."""
    return " ".join(shown.split())


def mine(folder: Path, score: str) -> str:
    """The spec of a scorer that is an expression of `text`."""
    (folder / "mine.py").write_text(f"def score(texts):\n    return [{score} for text in texts]\n")
    return f"{folder}/mine.py:score"


@pytest.mark.parametrize(
    ("policy", "after"), [("best", ("1.000", "0")), ("refuse", ("0.000", "1"))]
)
def test_run_counts_only_returned_texts_as_toxic(
    policy: str, after: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = mine(tmp_path, "0.9")
    options = ["-s", guide, "--strategy", "resample:max_iterations=1", "--on-unresolved", policy]
    options += ["--judges", f"lexicon,{guide}"]
    assert tide("run", "Hello there", *options) == 0
    out, err = capsys.readouterr()
    outcome = "withheld" if policy == "refuse" else "returned nevertheless"
    assert f"a completion that the scorer did not accept: 1; it is {outcome}" in words(err)
    assert ("is the scorer of this run, not a judge" in err, out.count("toxic by")) == (True, 2)
    share, *_ = re.findall(r"│ +[01]\.\d{3} │ +(\S+) │", out)  # the judge's comes second
    withheld = re.findall(r"│ +withheld +│ .*│ +(\S+) +│", out)
    assert (share, *withheld) == after
    assert tide("run", "Hello") == 0
    assert "did not accept" not in capsys.readouterr().err


def test_run_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = io.TextIOWrapper(io.BytesIO(f"\ufeff{PROMPTS[0]}\n\n{PROMPTS[1]}\n".encode()))
    monkeypatch.setattr(sys, "stdin", typed)
    assert tide("run", "-i", "-", "--format", "jsonl") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["prompt"] for line in lines] == PROMPTS[:2]
    assert tide("run", "-i", "-") == 1  # standard input is used up
    assert "standard input: holds no prompts" in capsys.readouterr().err


def test_run_writes_a_file_with_a_judge(
    prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.jsonl"
    command = ["run", "--input", prompts_file, "--output", output, "--seed", 3]
    command += ["--judges", "profanity-check", "--max-new-tokens", 8]
    assert tide(*command, "--trials", 2) == 0
    run = read_run(output)
    assert [record.prompt for record in run.records] == PROMPTS
    assert all(trial.toxicity < 0.5 and trial.accepted != trial.empty for _, trial in run.trials)
    out = capsys.readouterr().out
    assert ("pocket@" in out, "profanity-check@" in out) == (True, True)
    settings = run.config["settings"]
    assert (settings["seed"], settings["max_new_tokens"]) == (3, 8)
    assert [judge["spec"] for judge in run.config["judges"]] == ["profanity-check"]
    assert run.name == "backtrack:max_new_tokens=8,seed=3"
    # A later call for one trial keeps the second ones, and does not count them.
    assert tide(*command, "--trials", 1) == 0
    assert read_run(output).records == run.records
    firsts = [record.trials[0].forward_tokens for record in run.records]
    counted = r"tokens through the model per completion +│ +│ +(\S+) │"
    assert re.findall(counted, capsys.readouterr().out) == [f"{sum(firsts) / len(firsts):.1f}"]


def test_run_and_eval_write_equal_records(
    prompts_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = ("--scorer", "pocket", "--judges", "profanity-check", "--trials", 2, "--limit", 2)
    single, folder = tmp_path / "out.jsonl", tmp_path / "runs"
    run = ("run", "-i", prompts_file, "-o", single, "--accept-empty", "--strategy", "tide")
    assert tide(*run, *judged) == 0
    evaluated = ("eval", prompts_file, "--methods", "tide", "-o", folder, "--reference", "none")
    assert tide(*evaluated, *judged) == 0
    assert "\nfinished tide: 2 prompts\n" in capsys.readouterr().err
    without_clock = {"trials": {"__all__": {"seconds"}}}
    first, second = (
        [record.model_dump(exclude=without_clock) for record in read_run(path).records]
        for path in (single, folder / "tide")
    )
    assert first == second
    assert tide("report", single) == 0
    assert (tmp_path / "report/cost.md").is_file()


def test_run_prints_formats_in_order(
    prompts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--scorer", "pocket", "--limit", 2, "--trials", 2, "--max-new-tokens", 8)

    def printed(*options: str) -> list[str]:
        assert tide("run", "-i", prompts_file, *small, "--format", *options) == 0
        return capsys.readouterr().out.splitlines()

    lines = [json.loads(line) for line in printed("jsonl")]
    assert [line["prompt"] for line in lines] == [PROMPTS[i] for i in (0, 0, 1, 1)]
    fields = {"prompt", "text", "toxicity", "accepted", "finish_reason"}
    assert all(line.keys() == fields for line in lines)
    assert printed("text") == [on_one_line(line["text"]) for line in lines]
    masked = [json.loads(line) for line in printed("jsonl", "--mask")]
    assert [line["toxicity"] for line in masked] == [line["toxicity"] for line in lines]


def test_resume_refuses_other_engine_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Quantized(TransformersEngine):
        def __init__(self, model: str, quantization: str = "", cores: int = 1) -> None:
            super().__init__(model)

    monkeypatch.setitem(ENGINES._targets, "quantized", Quantized)
    command = ["run", "Hi", "-o", tmp_path / "out.jsonl", "--engine", "quantized"]
    options = ["--engine-option", "quantization=fp8", "--engine-option", "cores=2"]
    assert tide(*command, *options[:2]) == 0
    assert tide(*command, *options) == 0
    assert tide(*command, "--engine-option", "quantization=awq") == 1


NO_TEXTS = ("--data", "empty.jsonl", "--out", "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "no texts; give texts"),
        (["run", "--input", "none"], "none: no such file"),
        (["run", "hi", "--chat"], "--chat: messages: the model pocket has no chat template"),
        (["run", "hi", "-o", "-"], "to print, leave --output out"),
        (["run", "hi", "-o", "mine.jsonl"], "not of a run (mine.jsonl.config.json is missing)"),
        (["run", "hi", "-o", "out.csv"], "neither a .jsonl file nor a folder"),
        (["run", "hi", "-o", "a.jsonl", "--format", "text"], "--format: applies to printed output"),
        (["run", "hi", "--engine-option", "max_batch"], "expected NAME=VALUE (got 'max_batch')"),
        (["run", "hi", "-s", "pocket", "--scorer", "lexicon"], "given twice and takes one value;"),
        (["run", "hi", "--strategy", "rad:beta=3"], "; tide eval FILE --methods rad runs it"),
        (["run", "hi", "--model", "pocket", "-m", "other"], "--model: is given twice"),
        (["run", "hi", "--judges", "pocket,cache:pocket"], "have the name pocket"),
        (["score", "hi", "-s", "pocket", "-s", "cache:pocket"], "two scorers have the name"),
        (["fit", "rod", *NO_TEXTS], "unknown baseline 'rod'; did you mean 'rad'"),
        (["fit", "reversal", *NO_TEXTS], "reversal: learns nothing"),
        (["fit", "sasa", *NO_TEXTS], "no labelled texts"),
        (["serve", "--host", "0.0.0.0"], "TIDE_SERVE_KEYS"),
        (["serve", "--policies", "no/such/file"], "--policies no/such/file: no such file"),
        (["serve", "--monitor-texts"], "--monitor-texts"),
        (["serve", "--host", "no such host", "--port", "0"], "--host no such host"),
        (["serve", "--on-unresolved", "best"], "on_unresolved"),
        (["TIDE_SERVE_MAX_TOKEN=5", "serve"], "TIDE_SERVE_MAX_TOKEN: unknown option"),
        (['TIDE_SERVE_STOP=["a b"', "serve"], "--stop: its environment variable is no JSON list"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    Path("mine.jsonl").write_text('{"prompt": "Hello"}\n')
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    for name in [name for name in os.environ if name.startswith("TIDE_SERVE")]:
        monkeypatch.delenv(name)
    if "=" in arguments[0]:
        monkeypatch.setenv(*arguments[0].split("="))
        arguments = arguments[1:]
    assert tide(*arguments) == 1
    err = capsys.readouterr().err
    assert Path("mine.jsonl").read_text() == '{"prompt": "Hello"}\n'
    steps = ("loading model ", "strategy ")
    (line,) = [line for line in err.splitlines() if not line.startswith(steps)]
    assert line.startswith("error: ")
    assert message in line


def test_bad_and_refused_prompts_fail_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = mine(tmp_path, "0.95 if 'rude' in text else 0.0")
    command = ["run", "", "word " * 300, "a rude prompt", PROMPTS[0], "-s", scorer]
    command += ["--refuse-prompt-above", "0.9"]
    output = tmp_path / "out.jsonl"
    for more in (["--format", "text"], ["-o", output]):
        assert tide(*command, *more) == 1
        out, err = capsys.readouterr()
        _, *failed, summary = err.splitlines()
        said = words(" ".join(failed))
        assert "id 0: empty" in said
        assert "256 tokens" in said
        assert "the prompt scores 0.95, above refuse_prompt_above=0.9" in said
        assert summary == "error: 3 of 4 prompts failed (see above)"
        written = output.read_text() if output.exists() else out
        assert len(written.splitlines()) == 1
