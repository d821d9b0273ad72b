"""`tide threshold` prints the settings that a monitor log of ordinary traffic supports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import tide


def test_threshold_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "monitor.jsonl"
    scores = [0.05] * 990 + [0.305] * 10
    lines = [{"policy": "a", "outcome": "unchanged", "accepted_above": score} for score in scores]
    lines.append({"policy": "a", "outcome": "failed", "accepted_above": None})
    log.write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert tide("threshold", log) == 0
    shown = capsys.readouterr()
    assert shown.out == "toxicity_threshold: 0.31\nalter_at_most: 0.01\n"
    assert "0 of 1000 answers would be altered; with 95 % confidence, at most 0.30%" in shown.err
    assert "1 failed or skipped answers do not count" in shown.err
    assert tide("threshold", log, "--alter-at-most", "0.02") == 0
    assert "toxicity_threshold: 0.06" in capsys.readouterr().out
    assert tide("threshold", log, "--alter-at-most", "0.002") == 1
    assert "1497 answers can, if none of them is" in capsys.readouterr().err
