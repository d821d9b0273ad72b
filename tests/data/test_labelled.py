from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError
from tide.data.texts import LabelledText, read_labelled


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    return path


def test_labels_and_records_of_runs(tmp_path: Path) -> None:
    labels = jsonl(tmp_path / "a.jsonl", {"text": "one", "toxicity": 0.25, "source": "x"})
    record = {"id": 7, "prompt": "p", "completions": ["two", "three"], "toxicity_scores": [0, 1]}
    recorded = tmp_path / "b.json.gz"
    with gzip.open(recorded, "wt") as file:
        json.dump([record], file)
    trials = [
        {"id": 7, "prompt": "p", "number": number, "text": text, "toxicity": toxicity}
        for number, (text, toxicity) in enumerate([("two", 0), ("three", 1), ("", 0)])
    ]  # the empty text is left out: it has nothing to learn from
    run = jsonl(tmp_path / "c.jsonl", *trials)
    assert read_labelled([labels, recorded, run]) == [
        LabelledText("one", 0.25, "x"),
        LabelledText("two", 0.0, "", "p"),  # the context of a record is its prompt
        LabelledText("three", 1.0, "", "p"),
        LabelledText("two", 0.0, "", "p"),
        LabelledText("three", 1.0, "", "p"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"toxicity": 0.5}, "line 1: needs a text"),
        ({"text": "a"}, r"line 1: toxicity is None; it must be a number in \[0, 1\]"),
        ({"text": "a", "toxicity": 1.5}, r"is 1\.5"),
        ({"text": "a", "toxicity": "high"}, "is 'high'"),
        ({"completions": ["a", "b"], "toxicity_scores": [0.1]}, "as many 'toxicity_scores'"),
        ({"completions": ["a"]}, "as many 'toxicity_scores'"),
        ({"number": 0}, "a completion must be a text"),
        ({"number": 0, "text": "a", "toxicity": 2}, "toxicity is 2"),
        ([1], "line 1: not a JSON object"),
    ],
)
def test_what_is_no_label(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_labelled([jsonl(tmp_path / "a.jsonl", row)])


def test_another_kind_of_file_and_what_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown kind of file"):
        read_labelled([tmp_path / "a.csv"])
    (tmp_path / "a.json").write_text('{"text": "a", "toxicity": 0}')
    with pytest.raises(InputError, match="not a list of objects"):
        read_labelled([tmp_path / "a.json"])
