from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.command import tide
from tests.fakes import FakeScorer
from tests.rows import write_rows
from tide.scorers import REGISTRY
from tide.scorers.languages import term_hash


@pytest.fixture
def agreement(monkeypatch: pytest.MonkeyPatch) -> str:
    """A scorer that objects to "Yes" after a question about insults."""
    scorer = FakeScorer(
        lambda exchange: 0.9 * ("insult" in str(exchange.context) and exchange.text == "Yes"),
        name="agreement",
        reads="exchange",
    )
    monkeypatch.setitem(REGISTRY._targets, "agreement", lambda: scorer)
    return "agreement"


def test_score_reads_contexts_of_rows_and_one_of_the_command(
    agreement: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contexts: list[object] = [
        "May I insult him?",
        [{"role": "user", "content": "May I insult her?"}],
        "May I thank him?",
        None,
    ]
    path = write_rows(tmp_path / "a.jsonl", [{"context": each, "text": "Yes"} for each in contexts])
    output = tmp_path / "scores.jsonl"
    assert tide("score", "-i", path, "-s", agreement, "-s", "pocket", "-o", output) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["scores"][agreement] for line in lines] == [0.9, 0.9, 0.0, 0.0]
    assert [line.get("context") for line in lines] == contexts
    assert "ignored" not in capsys.readouterr().err
    assert tide("score", "-i", path, "-s", "pocket") == 0
    assert "contexts are ignored" in capsys.readouterr().err
    assert tide("score", "Yes", "No", "--context", "May I insult him?", "-s", agreement) == 0
    assert re.findall(r"0\.\d{3}", capsys.readouterr().out) == ["0.900", "0.000"]
    write_rows(path, [{"context": {"a": 1}, "text": "Yes"}])
    assert tide("score", "-i", path) == 1
    message = "line 1: 'context' must be a text or a list of messages, got dict"
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["run", "score"])
def test_output_that_is_an_input_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "texts.jsonl", [{"text": "a text", "prompt": "a text"}])
    content = path.read_text()
    (tmp_path / "folder").mkdir()
    output = tmp_path / "folder/../texts.jsonl"
    assert tide(command, "--input", path, "--output", output, "--overwrite") == 1
    assert "is also read as an input" in capsys.readouterr().err
    assert path.read_text() == content


def test_score_file_to_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    for name in ("scores.csv", "scores.jsonl.gz"):
        assert tide("score", "-i", path, "-o", tmp_path / name) == 1
        assert f"{name} is not a .jsonl file" in capsys.readouterr().err


def test_score_masks_listed_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hashes = frozenset(term_hash([word]) for word in ("stupid", "idiot"))
    monkeypatch.setattr("tide.evaluation.console.bundled_terms", lambda: hashes)
    arguments = ("score", "Have a nice day", "you stupid idiot", "--mask")
    assert tide(*arguments) == 0
    out = capsys.readouterr().out
    assert "Have a nice day" in out
    assert "you s***** i****" in out


def test_threshold_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = [0.05] * 990 + [0.305] * 10
    lines: list[dict[str, object]] = [
        {"policy": "a", "outcome": "unchanged", "accepted_above": score} for score in scores
    ]
    lines.append({"policy": "a", "outcome": "failed", "accepted_above": None})
    log = write_rows(tmp_path / "monitor.jsonl", lines)
    assert tide("threshold", log) == 0
    shown = capsys.readouterr()
    assert shown.out == "toxicity_threshold: 0.31\nalter_at_most: 0.01\n"
    assert "0 of 1000 answers would be altered; with 95 % confidence, at most 0.30%" in shown.err
    assert "1 failed or skipped answers do not count" in shown.err
    assert tide("threshold", log, "--alter-at-most", "0.02") == 0
    assert "toxicity_threshold: 0.06" in capsys.readouterr().out
    assert tide("threshold", log, "--alter-at-most", "0.002") == 1
    assert "1497 answers can show it, if none of them is" in capsys.readouterr().err
