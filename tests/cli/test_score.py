from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.command import tide


def test_texts_by_two_scorers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", "Have a nice day", "-s", "pocket", "-s", "profanity-check")
    assert tide(*arguments) == 0
    out = capsys.readouterr().out
    assert "pocket@" in out
    assert "profanity-check@" in out


def test_a_file_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "a.csv", tmp_path / "scores.jsonl"
    path.write_text("id,text\nx,Have a nice day\ny,you stupid idiot\n")
    command = ("score", "-i", path, "-o", output)
    assert tide(*command) == 0
    first, second = (json.loads(line) for line in output.read_text().splitlines())
    assert (first["id"], second["text"]) == ("x", "you stupid idiot")
    (low,), (high,) = first["scores"].values(), second["scores"].values()
    assert 0 <= low < 0.5 < high <= 1
    assert tide(*command) == 1
    assert "exists" in capsys.readouterr().err
    assert tide(*command, "--overwrite") == 0


@pytest.mark.parametrize("command", [("run", "--strategy", "resample:n=1"), ("score",)])
def test_a_file_is_not_masked_and_the_terminal_says_so(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command
    output = tmp_path / "out.jsonl"
    arguments = (name, "you stupid idiot", *options, "-o", output, "--mask")
    assert tide(*arguments) == 0
    assert "you stupid idiot" in output.read_text()
    said = f"{output}: holds the texts as they are; --mask masks only what is printed"
    assert said in capsys.readouterr().err


def test_masking_hides_toxic_texts_only(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("score", "Have a nice day", "you stupid idiot", "--mask")
    assert tide(*arguments) == 0
    out = capsys.readouterr().out
    assert "Have a nice day" in out
    assert "you s***** i****" in out


@pytest.mark.parametrize("command", ["run", "score"])
def test_outputs_that_cannot_be(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The input, a device, a folder, a name that is too long: one line, and nothing is lost."""
    path, link = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    content = '{"text": "Have a nice day"}\n'
    path.write_text(content)
    link.symlink_to(path)
    cases = {
        path: "is also read as an input",
        link: "is also read as an input",
        tmp_path / f"{'x' * 300}.jsonl": "cannot be written: File name too long",
        Path("/proc/none/a.jsonl"): "cannot be written: ",
    }
    if command == "score":  # to `run`, a folder is a run folder
        cases |= dict.fromkeys(
            (tmp_path, Path("/dev/full"), Path("/dev/null")), "cannot be written"
        )
    for output, message in cases.items():
        options = ("-i", path, "-o", output, "--field", "text", "--overwrite")
        assert tide(command, *options) == 1
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == (2 if err.startswith("loading ") else 1)
    assert (path.read_text(), sorted(tmp_path.iterdir())) == (content, [path, link])


def test_a_full_disk_keeps_the_old_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scores.jsonl"
    output.write_text("old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _full)
        options = ("-o", output, "--overwrite")
        assert tide("score", "Have a nice day", *options) == 1
    assert "cannot be written: No space left" in capsys.readouterr().err
    assert (output.read_text(), list(tmp_path.iterdir())) == ("old", [output])


def _full(descriptor: int) -> None:
    raise OSError(28, "No space left on device")
