"""The split of ordinary texts, and the calibration; the training itself takes minutes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from models.train_pocket_scorer import calibrated, fit_knots, prose_part, read_ordinary
from scipy.special import expit, logit

from tests.pocket.training import write_rows
from tide.scorers import pocket


def test_a_prompt_is_in_the_part_of_its_sentence() -> None:
    sentence = "Jane Doe is a writer who lives in Graz."
    assert prose_part(sentence) == prose_part("Jane Doe is") == prose_part("jane doe, is a")
    parts = Counter(prose_part(f"word{i} stands here") for i in range(3000))
    assert parts["report"] / 3000 == pytest.approx(0.2, abs=0.03)
    assert parts["sentence"] / 3000 == pytest.approx(0.2, abs=0.03)
    assert parts["calibrate"] / 3000 == pytest.approx(0.1, abs=0.03)


def test_no_ordinary_text_is_in_two_parts(tmp_path: Path) -> None:
    sentences = [{"text": f"word{i} stands here"} for i in range(50)] * 2
    replies = [{"response": f"yes {i} of us", "unsafe": i % 2} for i in range(50)]
    write_rows(tmp_path / "corpus/bold_wikipedia.jsonl.gz", sentences)
    write_rows(tmp_path / "corpus/dialogues.jsonl.gz", replies)
    written = tmp_path / "written.jsonl"
    rows = ({"prompt": f"word{i} stands", "text": f"text {i}"} for i in range(50))
    written.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = ("train", "calibrate", "sentence", "report")
    prose = [read_ordinary(tmp_path, written, part) for part in parts]
    for kind, count in (("wikipedia", 50), ("replies", 25), ("written", 50)):
        texts = [text for part in prose for text in part[kind]]
        assert len(texts) == len(set(texts)) == count


def test_knots_give_probabilities() -> None:
    """Of scores that are too low in the middle, as those of a line fitted to all of them."""
    rng = np.random.default_rng(0)
    chance = rng.beta(0.3, 0.6, 20_000).clip(1e-4, 1 - 1e-4)
    labels = (rng.random(20_000) < chance).astype(float)
    wrong = logit(chance) - np.where(abs(logit(chance)) < 1.5, 0.8, 0.0)
    knots = fit_knots(wrong, labels, np.ones(20_000))
    assert (np.diff(knots) > 0).all()
    shifted = calibrated(wrong, knots)
    assert shifted.tolist() == [
        pocket.calibrated(value, *knots.tolist()) for value in wrong.tolist()
    ]
    off = []
    for scores in (expit(wrong), expit(shifted)):
        here = (scores > 0.15) & (scores < 0.3)
        off.append(abs(labels[here].mean() - scores[here].mean()))
    assert off[0] > 0.1
    assert off[1] < 0.05
