"""The split of ordinary texts; the training itself takes minutes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from models.train_pocket_scorer import prose_part, read_ordinary

from tests.rows import write_rows


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
    write_rows(written, [{"prompt": f"word{i} stands", "text": f"text {i}"} for i in range(50)])
    parts = ("train", "calibrate", "sentence", "report")
    prose = [read_ordinary(tmp_path, written, part) for part in parts]
    for kind, count in (("wikipedia", 50), ("replies", 25), ("written", 50)):
        texts = [text for part in prose for text in part[kind]]
        assert len(texts) == len(set(texts)) == count
