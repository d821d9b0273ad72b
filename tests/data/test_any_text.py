"""Records of any text come back, and files of other programs are read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tide.data.records import Record, RecordFile, TrialRecord, read_records
from tide.data.texts import read_rows


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes an unused path with the given ending."""
    folder, numbers = tmp_path_factory.mktemp("records"), count()
    return lambda end: folder / f"{next(numbers)}{end}"


@pytest.mark.attack
@examples(50, 1_000)
@given(st.lists(st.text(), min_size=1, max_size=4), st.text(), st.text() | st.integers(0))
def test_records_of_any_text_come_back(
    fresh: Callable[[str], Path], texts: list[str], prompt: str, row_id: str | int
) -> None:
    path = fresh(".jsonl")
    trials = [
        TrialRecord(number=number, text=text, toxicity=0.1, judge_scores={prompt: 0.3})
        for number, text in enumerate(texts)
    ]
    record = Record(id=row_id, prompt=prompt, trials=trials)
    file = RecordFile(path, path.with_name("scores.jsonl"))
    file.add(record)
    assert file.records == {row_id: record}
    assert read_records(path) == [record]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    rows = {"a.csv": b"prompt\none\n", "a.txt": b"one", "a.jsonl": b'{"prompt": "one"}\n'}
    for name, content in rows.items():
        (tmp_path / name).write_bytes(mark + content)
        assert read_rows(tmp_path / name)[0].text == "one"
    record = Record(id=0, prompt="one", trials=[TrialRecord(number=0, text="a", toxicity=0.1)])
    path = tmp_path / "records.jsonl"
    path.write_bytes(mark + b"".join(record.lines()))
    assert read_records(path) == [record]
