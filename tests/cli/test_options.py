from __future__ import annotations

import sys

import pytest

from tide.cli import main
from tide.cli.options import _FORMER, refuse_former
from tide.core.errors import InputError
from tide.search import load_strategy


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (["run", "--cosine-threshold", "0.5", "x"], "--strategy tide:cosine_threshold=VALUE"),
        (["eval", "rtp", "--no-antithetic"], "--strategy tide:antithetic=false"),
        (["run", "--ladder-from=0.6", "x"], "--strategy ladder:from=VALUE"),
    ],
)
def test_a_former_option_says_the_new_one(
    arguments: list[str],
    new: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tide", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"write {new}, or" in line


def test_texts_are_no_options() -> None:
    refuse_former(["run", "--strategy", "tide:antithetic=true", "--", "--antithetic"])
    with pytest.raises(InputError, match=r"^--antithetic: belongs to its strategy now"):
        refuse_former(["run", "--antithetic", "x"])


@pytest.mark.parametrize("new", _FORMER.values())
def test_what_it_says_can_be_written(new: str) -> None:
    usual = {
        "cosine_threshold": "0.5",
        "normalization": "matrix",
        "projection": "nearest",
        "estimator": "rank",
    }
    option = new.partition(":")[2].partition("=")[0]
    load_strategy(new.replace("VALUE", usual.get(option, "1")))


@pytest.mark.parametrize("command", ["run", "serve"])
def test_the_help_states_the_defaults_that_hold(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that a preset sets are the preset's; a server withholds what is not accepted."""
    monkeypatch.setattr(sys, "argv", ["tide", command, "--help"])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main()
    shown = " ".join(capsys.readouterr().out.split())

    def default(flag: str) -> str:
        _, _, says = shown.partition(f" {flag} <")
        return says.partition("default: ")[2].partition("]")[0]

    for flag in ("--toxicity-threshold", "--strategy", "--num-samples"):
        assert default(flag) == "by --preset"
    assert default("--preset") == "auto"
    assert default("--max-new-tokens") == "20; of a chat 512"
    assert default("--on-unresolved") == ("refuse" if command == "serve" else "best")
