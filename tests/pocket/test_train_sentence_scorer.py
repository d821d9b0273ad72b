"""The texts that the script for the sentence scorer reads, of a few mild ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.pocket.training import training_script, write_data


@pytest.fixture
def script(tmp_path: Path) -> Iterator[ModuleType]:
    with training_script("train_sentence_scorer", tmp_path / "foundation") as (script, _):
        yield script


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data")


def test_reads_nothing_that_pocket_read(script: ModuleType, data: Path) -> None:
    import train_pocket_scorer as pocket

    labelled = pocket.read_labelled(data / "labelled")
    trained = {labelled.texts[i] for i in np.flatnonzero(labelled.parts(0) > 0)}
    parts = [pocket.read_ordinary(data, None, part) for part in ("train", "calibrate")]
    prose = {text for part in parts for texts in part.values() for text in texts}
    data_read = script.read(data)
    ordinary = {*data_read.ordinary, *data_read.prose}
    read = {*data_read.labelled.texts, *data_read.held.texts, *data_read.recorded.texts, *ordinary}
    assert data_read.labelled.texts
    assert data_read.held.texts
    assert not {*data_read.labelled.texts} & {*data_read.held.texts}
    assert not read & (trained | prose)
    assert not ordinary & {*pocket.read_ordinary(data, None, "report")["wikipedia"]}
    assert any(text.startswith("The shop") for text in ordinary)
    assert "Is house 2 open?" in ordinary
    recorded = script.recorded(data, script.Known(["You dummy 5."])).texts
    assert "You dummy 0." in recorded
    # Nothing that `pocket` read, nothing of later prompts.
    later = {f"The walk {(script.LAST_PROMPT + i) % 7} is open." for i in range(3)}
    assert not {"You dummy 5.", f"You dummy {script.LAST_PROMPT}.", *later} & {*recorded}


def test_known_texts_share_their_words_or_a_run_of_them(script: ModuleType) -> None:
    known = script.Known(["A quiet house.", "one two three four five six seven eight nine"])
    assert "a  quiet, HOUSE" in known
    assert "a quiet" not in known
    assert "and two three four five six seven eight nine" in known
    assert "one two three four five six seven" not in known
