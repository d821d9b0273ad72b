from __future__ import annotations

import pytest

from tests.command import tide


@pytest.mark.parametrize("command", ["run", "serve"])
def test_the_help_states_the_defaults_that_hold(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that a preset sets are the preset's; a server withholds what is not accepted."""
    monkeypatch.setenv("COLUMNS", "400")
    assert tide(command, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())

    def default(flag: str) -> str:
        _, _, says = shown.partition(f" {flag} <")
        return says.partition("default: ")[2].partition("]")[0]

    for flag in ("--toxicity-threshold", "--strategy", "--num-samples"):
        assert default(flag) == "by --preset"
    assert default("--preset") == "auto"
    assert default("--max-new-tokens") == "20; of a chat 512"
    assert default("--on-unresolved") == ("refuse" if command == "serve" else "best")
