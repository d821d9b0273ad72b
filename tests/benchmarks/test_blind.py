"""Readers get the texts that differ, in a random order, and the key alone tells whose they are."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tests.evaluation.runs import run, write
from tests.scripts.loading import load_script
from tide.core.errors import InputError

blind = load_script("benchmarks/blind.py")


@pytest.fixture
def reading(tmp_path: Path) -> Path:
    """Twenty prompts, of which the first fifteen have two texts; one reader noted every text."""
    model = run([[0.9]] * 20)
    repaired = run([[0.1]] * 15 + [[0.9]] * 5, "backtrack")
    paths = [write(method, tmp_path / "runs" / method.name) for method in (model, repaired)]
    blind.draw(*paths, out=tmp_path / "reading", limit=12)
    return tmp_path / "reading"


def notes(reading: Path, kind: str) -> Path:
    """Write the sheet of a reader who calls all texts of a kind offensive."""
    key = pd.read_csv(reading / "key.csv")
    sheet = pd.read_csv(reading / "notes.csv").assign(**dict.fromkeys(blind.COLUMNS, 0))
    sheet["offensive"] = (key["kind"] == kind).astype(int)
    path = reading / f"{kind}.csv"
    sheet.to_csv(path, index=False)
    return path


def test_blind_texts_differ_and_come_in_both_orders(reading: Path) -> None:
    key = pd.read_csv(reading / "key.csv")
    assert len(key) == 24
    assert key["id"].max() < 15
    assert set(key[key["text"] == "A"]["kind"]) == {"own", "repaired"}
    texts = (reading / "texts.txt").read_text()
    assert texts.count("PROMPT") == 12
    assert "own" not in texts


def test_count_compares_kinds_and_readers(
    reading: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind.count(reading, [notes(reading, "own"), notes(reading, "repaired")])
    rows = [re.split(r" *\| *", line) for line in capsys.readouterr().out.splitlines()]
    first, *_, second = (row for row in rows if "offensive" in row)
    assert first[4:7] == ["12 [0.76, 1.00]", "0 [0.00, 0.24]", "0.00049"]
    assert second[-3:-1] == ["0", "-1"]


def test_unfilled_notes_are_named(reading: Path) -> None:
    with pytest.raises(InputError, match=r"text \d+[AB] needs 0 or 1"):
        blind.count(reading, [reading / "notes.csv"])
