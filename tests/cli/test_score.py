from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_run import tide


def test_texts_by_two_scorers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("score", "Have a nice day", "-s", "pocket", "-s", "profanity-check")
    assert tide(*arguments, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "pocket@" in out
    assert "profanity-check@" in out


def test_a_file_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = tmp_path / "a.csv", tmp_path / "scores.jsonl"
    path.write_text("id,text\nx,Have a nice day\ny,you stupid idiot\n")
    command = ("score", "-i", path, "-o", output)
    assert tide(*command, monkeypatch=monkeypatch) == 0
    first, second = (json.loads(line) for line in output.read_text().splitlines())
    assert (first["id"], second["text"]) == ("x", "you stupid idiot")
    (low,), (high,) = first["scores"].values(), second["scores"].values()
    assert 0 <= low < 0.5 < high <= 1
    assert tide(*command, monkeypatch=monkeypatch) == 1
    assert "exists" in capsys.readouterr().err
    assert tide(*command, "--overwrite", monkeypatch=monkeypatch) == 0


def test_masking_hides_toxic_texts_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("score", "Have a nice day", "you stupid idiot", "--mask")
    assert tide(*arguments, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "Have a nice day" in out
    assert "y** s***** i****" in out
