from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.main import get_command

from tests.command import tide
from tests.models import save_causal_lm, save_mamba
from tide.baselines import REGISTRY as BASELINES
from tide.cli import options
from tide.cli.app import app
from tide.cli.display import name_of
from tide.cli.installed import _FRIENDLY
from tide.core.errors import InputError
from tide.detoxifier.presets import PRESETS
from tide.engines import REGISTRY as ENGINES
from tide.engines.base import Request
from tide.engines.local.engine import TransformersEngine
from tide.scorers import REGISTRY as SCORERS
from tide.scorers import CallableScorer
from tide.search import REGISTRY as STRATEGIES

KINDS = (STRATEGIES, BASELINES, SCORERS, ENGINES)
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_strategy.py"


class Counting(TransformersEngine):
    requests: list[Request] = []  # noqa: RUF012

    def _write(self, request: Request) -> Any:
        self.requests.append(request)
        return super()._write(request)


def test_methods_lists_every_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, registry in enumerate(KINDS):
        monkeypatch.setitem(registry._targets, f"broken-{number}", "nowhere.at_all:Thing")
    assert tide("methods") == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    assert "…" not in out
    words = out.split()
    for name in (name for registry in (*KINDS, PRESETS) for name in _names(registry)):
        assert any(word.startswith(name) for word in words)
    assert "Maximum number of banned" not in out  # options are shown only for a single name
    assert " ".join(words).count(
        "nowhere.at_all cannot be imported: No module named 'nowhere'"
    ) == len(KINDS)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("resample", ["n=none Maximum completions; by default max_iterations."]),
        ("mine", ["level=0.25", "mine (scorer)"]),
        ("transformers", ["trust_remote_code=false", "transformers (engine)"]),
        ("backtrack", ["backtrack (strategy", "holds=12 Maximum number of banned words",
                       "backtrack (preset)", "strategy=backtrack"]),
        ("rad", ["(warp-shift or shift-warp)"]),
        ("max", ["max:SCORER,SCORER (scorer)"]),
    ],
)  # fmt: skip
def test_methods_shows_the_options_of_a_name(
    name: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCORERS._targets, "mine", "tests.scorers.test_load:Tuned")
    assert tide("methods", name) == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    for line in lines:
        assert line in " ".join(out.split())


def test_methods_suggests_a_near_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("methods", "rezample") == 1
    assert "unknown name 'rezample'; did you mean 'resample'?" in capsys.readouterr().err


def _all_commands() -> list[list[str]]:
    def below(command: Any, path: list[str]) -> list[list[str]]:
        children = getattr(command, "commands", {})
        return [path, *(p for name, child in children.items() for p in below(child, [*path, name]))]

    return below(get_command(app), [])


@pytest.mark.parametrize("path", _all_commands(), ids=" ".join)
def test_help_is_whole_at_80_columns(
    path: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert tide(*path, "--help") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    said = " ".join(out.replace("...", "").split())
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    for child in getattr(command, "commands", {}).values():
        first = (child.help or "").partition("\n\n")[0].partition(". ")[0].split()
        assert " ".join(first).rstrip(".") in said.replace("- ", "-")
    for parameter in command.params:
        assert all(flag in out for flag in parameter.opts)


def _names(kind: object) -> Sequence[str]:
    return list(kind) if isinstance(kind, dict) else kind.names()  # type: ignore[attr-defined]


def test_judges_follow_the_grammar_of_scorers() -> None:
    specs = ["pocket,cache:lexicon", "cache:max:pocket,lexicon", "(max:pocket,lexicon),hf:A,hf:b#c"]
    assert options.judges(specs) == [
        "pocket", "cache:lexicon", "cache:max:pocket,lexicon", "max:pocket,lexicon", "hf:A",
        "hf:b#c",
    ]  # fmt: skip
    assert options.judges(None) == []
    with pytest.raises(InputError, match="--judges: an empty entry"):
        options.judges(["pocket,,lexicon"])


def test_run_takes_classes_by_path(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("run", "She told me to shut the", "What a load of", "--scorer")
    engine = ("--engine", "tests.cli.test_installed:Counting", "--max-new-tokens", 5)
    strategy = ("--strategy", f"{EXAMPLE}:OneJump:count=6,mu_relative=1.5")
    scorer = "max:pocket,tests.scorers.test_load:Tuned:level=0.1"
    assert tide(*command, scorer, *engine, *strategy) == 0
    drafts = [sent for sent in Counting.requests if not isinstance(sent.prompt, Tensor)]
    moved = [sent for sent in Counting.requests if isinstance(sent.prompt, Tensor)]
    assert (len(drafts), len(moved)) in [(2, 6), (2, 12)]
    assert "max:pocket@" in capsys.readouterr().out
    bad = ("--strategy", f"{EXAMPLE}:OneJump:count=0")
    assert tide(*command, "pocket", *bad) == 1
    err = capsys.readouterr().err
    assert "OneJump: count: Input should be greater than or equal to 1" in err.replace("\n", "")


@pytest.mark.parametrize("command", ["run", "serve"])
def test_help_states_defaults_of_presets(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of a preset say so; the server's default of on_unresolved is refuse."""
    monkeypatch.setenv("COLUMNS", "400")
    assert tide(command, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert not re.search(r"--[\w-]*_", shown)

    def default(flag: str) -> str:
        _, _, says = shown.partition(f" {flag} <")
        return says.partition("default: ")[2].partition("]")[0]

    for flag in ("--toxicity-threshold", "--strategy", "--num-samples"):
        assert default(flag) == "by the preset"
    assert default("--preset") == "auto"
    assert default("--max-new-tokens") == "20; for a chat 512"
    assert default("--on-unresolved") == ("refuse" if command == "serve" else "best")


def words(capsys: pytest.CaptureFixture[str]) -> str:
    """The words of the table, without its lines."""
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_model_of_a_server_is_named_by_the_server() -> None:
    options = {"base_url": "http://me:secret@host:8000/v1"}
    assert name_of("pocket", options) == "of host:8000"
    assert name_of("mine", options) == "mine of host:8000"
    assert name_of("pocket", {}) == "pocket"


def test_doctor_of_a_sound_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert tide("doctor", "--scorer", "windows:pocket") == 0
    out = words(capsys)
    assert "scorer windows:pocket" in out  # and not an emoji for `:windows:`
    assert "writes the same from token ids and from their embeddings" in out
    assert "its threshold is 0.5" in out
    assert f" numpy {version('numpy')} " in out
    assert 'after "The weather today is" it writes: ' in out
    assert "no chat template" in out


def test_doctor_checks_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_causal_lm(tmp_path / "gemma", "gemma2", bos=True)
    assert tide("doctor", "--model", folder) == 0
    assert "context of 64 tokens" in words(capsys)
    folder = save_mamba(tmp_path / "mamba")
    assert tide("doctor", "--model", folder) == 1
    assert "failed" in capsys.readouterr().out


def test_doctor_finds_a_scorer_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCORERS._targets, "strange", lambda: 1 / 0)
    assert tide("doctor", "--scorer", "strange") == 1
    assert "failed: cannot be used: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize(("insult", "code"), [(0.3, 1), (0.9, 0)])
def test_doctor_finds_a_scorer_with_the_wrong_label(
    insult: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def score(texts: list[str]) -> list[float]:
        return [0.3 if text in _FRIENDLY else insult for text in texts]

    monkeypatch.setitem(SCORERS._targets, "odd", lambda: CallableScorer(score))
    assert tide("doctor", "--scorer", "odd") == code
    assert ("check its label and language" in words(capsys)) == (code == 1)
