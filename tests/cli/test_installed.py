from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.command import tide
from tests.engines.openai.server import TextServer
from tests.models import MAMBA, save_causal_lm
from tide.baselines import REGISTRY as BASELINES
from tide.cli import options
from tide.cli.app import app
from tide.cli.display import model_label
from tide.core.errors import InputError
from tide.engines import REGISTRY as ENGINES
from tide.scorers import REGISTRY as SCORERS
from tide.scorers.base import CallableScorer
from tide.search import REGISTRY as STRATEGIES

KINDS = (STRATEGIES, BASELINES, SCORERS, ENGINES)


def narrow(capsys: pytest.CaptureFixture[str]) -> str:
    """The words of what was printed, which must fit into 80 columns."""
    out = capsys.readouterr().out
    assert max(map(len, map(str.rstrip, out.splitlines()))) <= 80
    assert "…" not in out
    return " ".join(out.split())


def test_methods_lists_every_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, registry in enumerate(KINDS):
        monkeypatch.setitem(registry._targets, f"broken-{number}", "nowhere.at_all:Thing")
    assert tide("methods") == 0
    shown = narrow(capsys)
    assert all(f" {name}" in shown for registry in KINDS for name in registry.names())
    assert "Maximum number of banned" not in shown  # options are shown only for a single name
    problem = "nowhere.at_all cannot be imported: No module named 'nowhere'"
    assert shown.count(problem) == len(KINDS)


def test_scorers_are_listed_with_their_specs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCORERS._targets, "mine", "tests.scorers.test_load:Tuned")
    assert tide("scorers") == 0
    shown = narrow(capsys)
    assert all(f" {name}" in shown for name in SCORERS.names())
    assert "confirm:SCORER,SCORER The second scorer decides" in shown
    assert "hf:ID_OR_FOLDER#LABEL,LABEL The probability" in shown


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mine", ["level=0.25", "mine (scorer)"]),
        ("transformers", ["trust_remote_code=false", "transformers (engine)"]),
        ("backtrack", ["backtrack (strategy,", "holds=12 Maximum number of banned words"]),
        ("rad", ["(warp-shift or shift-warp)"]),
        ("max", ["max:SCORER,SCORER (scorer)"]),
    ],
)  # fmt: skip
def test_methods_shows_the_options_of_a_name(
    name: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCORERS._targets, "mine", "tests.scorers.test_load:Tuned")
    assert tide("methods", name) == 0
    shown = narrow(capsys)
    assert all(line in shown for line in lines)


def all_commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    children = getattr(command, "commands", {}).items()
    return [path, *(p for name, child in children for p in all_commands(child, (*path, name)))]


@pytest.mark.parametrize("path", all_commands(get_command(app)), ids=" ".join)
def test_help_is_whole_at_80_columns(
    path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert tide(*path, "--help") == 0
    shown = narrow(capsys)
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    for child in getattr(command, "commands", {}).values():
        first = (child.help or "").partition("\n\n")[0].partition(". ")[0].split()
        assert " ".join(first).rstrip(".") in shown.replace("- ", "-")
    for parameter in command.params:
        assert all(flag in shown for flag in parameter.opts)


def test_judges_follow_the_grammar_of_scorers() -> None:
    specs = ["pocket,cache:lexicon", "(max:pocket,lexicon),hf:A"]
    expected = ["pocket", "cache:lexicon", "max:pocket,lexicon", "hf:A"]
    assert options.judges(specs) == expected
    assert options.judges(None) == []
    with pytest.raises(InputError, match="--judges: an empty entry"):
        options.judges(["pocket,,lexicon"])


@pytest.mark.parametrize("command", ["run", "serve"])
def test_help_states_defaults_of_presets(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of a preset say so; the server's default of on_unresolved is refuse."""
    monkeypatch.setenv("COLUMNS", "400")
    assert tide(command, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert not re.search(r"--[\w-]*_", shown)
    for flag, default in {
        "--toxicity-threshold": "by the preset",
        "--strategy": "by the preset",
        "--num-samples": "by the preset",
        "--preset": "auto",
        "--max-new-tokens": "20; for a chat 512",
        "--on-unresolved": "refuse" if command == "serve" else "best",
    }.items():
        _, _, says = shown.partition(f" {flag} <")
        assert says.partition("default: ")[2].partition("]")[0] == default


def test_model_of_a_server_is_named_by_the_server() -> None:
    options = {"base_url": "http://me:secret@host:8000/v1"}
    assert model_label("pocket", options) == "of host:8000"
    assert model_label("mine", options) == "mine of host:8000"
    assert model_label("pocket", {}) == "pocket"
    assert model_label("pocket", {"base_url": "host:8000"}) == "of host:8000"


def test_doctor_of_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("doctor", "--scorer", "windows:pocket") == 0
    out = narrow(capsys)
    assert "scorer windows:pocket" in out  # and not an emoji for `:windows:`
    assert "writes the same from token ids and from their embeddings" in out
    assert "its threshold is 0.5" in out
    assert f" numpy {version('numpy')} " in out
    assert 'after "The weather today is" it writes: ' in out
    assert "context of 256 tokens" in out
    assert "no chat template" in out


def test_doctor_of_a_gateway_names_no_chat_template(capsys: pytest.CaptureFixture[str]) -> None:
    with TextServer() as upstream:
        gateway = ("--engine", "openai", "--base-url", upstream.url)
        assert tide("doctor", "--scorer", "pocket", *gateway) == 0
    out = narrow(capsys)
    assert "serves tiny" in out
    assert "chat template" not in out


def test_doctor_finds_a_failing_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("doctor", "--model", save_causal_lm(tmp_path, MAMBA)) == 1
    assert "failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scorer", "code", "says"),
    [
        ("pocket", 0, "only scores texts"),
        ("broken", 1, "scorer 'broken' cannot be loaded: ZeroDivisionError"),
        ("constant", 1, "check its label and language"),
    ],
)
def test_doctor_of_a_server_that_only_scores(
    scorer: str,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    constant = CallableScorer(lambda texts: [0.3] * len(texts))
    monkeypatch.setitem(SCORERS._targets, "constant", lambda: constant)
    monkeypatch.setitem(SCORERS._targets, "broken", lambda: 1 / 0)
    assert tide("doctor", "--engine", "none", "--scorer", scorer) == code
    assert says in narrow(capsys)
