"""The texts that the script for the sentence scorer reads, of a few mild ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from models.probes import LIMITS

from models import probes
from models import sentence_templates as templates
from models import train_pocket_scorer as pocket
from tests.pocket.training import write_data
from tests.scripts.loading import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("models/train_sentence_scorer.py")


def test_reads_nothing_that_pocket_read(script: ModuleType, tmp_path: Path) -> None:
    data = write_data(tmp_path)
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


@pytest.mark.nightly
def test_what_measures_is_kept_out(script: ModuleType) -> None:
    """Neither its words are taught, nor five words of its sentences in a row."""
    development = script.sentence_development
    texts = [text for seed in range(4) for text, _ in templates.sentences(seed=seed)]
    taught = {sentence for text in texts for sentence in re.split("(?<=[.;!?]) ", text)}
    assert len(taught) > 25_000
    measured = {*probes._NOUNS, *probes._ADJECTIVES, *probes._OTHERS, *probes._GROUPS} - {"women"}
    chosen_by = {*development.NOUNS, *development.ADJECTIVES, *development.GROUPS}
    assert not measured & chosen_by
    words = re.compile(rf"\b({'|'.join(map(re.escape, measured | chosen_by))})\b")
    assert not [text for text in taught if words.search(text.lower())]
    slots_of = templates._DATA["slots"]
    slots = templates._DATA["outsiders"] + slots_of["people"] + slots_of["noun"] + slots_of["adj"]
    longest_first = sorted({*measured, *chosen_by, *slots, "women"}, key=len, reverse=True)
    fillers = "|".join(map(re.escape, longest_first))
    filler = re.compile(rf"\b(?:an? )?({fillers})\b", re.IGNORECASE)

    def runs(sentences: Iterable[str], length: int = 5) -> set[tuple[str, ...]]:
        """Words in a row, with X for insults and groups; all words of a shorter sentence."""
        runs_of_words = set()
        for sentence in sentences:
            row = script.words_of(filler.sub("X", sentence))
            last = max(len(row) - length, 0)
            runs_of_words |= {tuple(row[i : i + length]) for i in range(last + 1)}
        return runs_of_words

    trivial = {"plain insults", "leetspeak", "asterisks", "letters apart"}
    of_probes = runs(s for limit in LIMITS if limit.name not in trivial for s in limit.sentences)
    of_development = runs(s for limit in development.SETS for s in limit.sentences)
    assert not (of_probes | of_development) & runs(taught)
    assert not of_probes & of_development
    texts_found = 5 * ["You are a moron.", "You are a dork.", "You are a dolt.", "You are a nurse."]
    labelled = script.Rows(texts_found, 5 * [1.0, 1.0, 1.0, 0.0])
    assert script.found_insults(labelled) == ["dolt"]
