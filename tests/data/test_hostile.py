"""Malformed files give rows, or an error of one line, and nothing else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.evaluation.runs import config, search_run
from tests.generated import examples
from tide.core.errors import TideError
from tide.data.jsonl import read_object, read_objects
from tide.data.labelled import read_labelled
from tide.data.prompts import Row, read_rows
from tide.data.record_files import RecordFile, read_records
from tide.data.records import Record, TrialRecord
from tide.evaluation import report
from tide.evaluation.runs import read_run

pytestmark = pytest.mark.attack

RUN = search_run("tide", prompts=3)
LINES = [line.removesuffix(b"\n") for record in RUN.records for line in record.lines()]
SCORES = [
    json.dumps({"id": 0, "number": number, "judge": "new", "score": score}).encode()
    for number, score in ((1, 0.5), (0, 0.25))
]
CONFIG = config("tide", num_trials=2, references=["larger"], settings=RUN.config["settings"])
VALID = [
    b'{"prompt": "one", "id": 3}\n\n{"prompt": {"text": "two"}, "id": "x"}\n',
    b'id,prompt\nx,one\ny,"two, with\na line break"\n',
    b"one\ntwo\r\nthree",
    b'[{"text": "a", "toxicity": 0.5}, {"toxic": "b", "neutral": ["c"]}]',
    b"\n".join([*LINES, b""]),
    b"\n".join([*SCORES, b""]),
    json.dumps(CONFIG).encode(),
]
# Content that often breaks parsers.
NASTY = [
    *(b"\xff", b"\x00", b"\xef\xbb\xbf", b"\r", b'"', b",", b"\n", b"\xe2\x80\xa8", b"\\ud800"),
    *(b"NaN", b"-Infinity", b"1e999", b"9" * 4301, b"-1", b"7", b"null", b"[]", b"{}", b"true"),
    *(b"[" * 3000, b'{"a":' * 3000, b'"id"', b"\x1f\x8b"),
]
SUFFIXES = (".jsonl", ".csv", ".txt", ".json", "", ".parquet")


def read_scores(path: Path) -> list[Record]:
    """Read `path` as the scores of a valid run."""
    records = path.with_name("valid.jsonl")
    records.write_bytes(b"\n".join([*LINES, b""]))
    return read_records(records, path)


READERS: list[Callable[[Path], Any]] = [
    read_rows,
    lambda path: read_rows(path, field="text", skip_empty=True, group="id"),
    lambda path: list(read_objects(path)),
    lambda path: read_labelled([path], by="id"),
    read_object,
    read_records,
    lambda path: RecordFile(path, path.with_name("scores.jsonl")),
    read_scores,
]


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Random bytes, or a valid file with some of its pieces changed."""
    content = draw(st.sampled_from(VALID) | st.binary(max_size=60))
    for _ in range(draw(st.integers(0, 3))):
        begin, length = draw(st.integers(0, len(content))), draw(st.integers(0, 9))
        piece = draw(st.sampled_from(NASTY) | st.binary(max_size=4) | st.just(content[:begin]))
        content = content[:begin] + piece + content[begin + length :]
    return content


def check_line(error: TideError, path: Path) -> None:
    assert str(error).startswith(str(path))
    assert "\n" not in str(error)
    assert len(str(error)) <= 1000


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes an unused path with the given ending."""
    folder, numbers = tmp_path_factory.mktemp("hostile"), count()
    return lambda end: folder / f"{next(numbers)}{end}"


@examples(100, 10_000)
@given(contents(), st.sampled_from(SUFFIXES), st.integers(0, 8))
@example(b'{"prompt": "\\ud800"}\n', ".jsonl", 8)
@example(b'id,prompt\n1,"one\n2,two\n', ".csv", 8)
@example(b'{"id": 1, "completions": 5}\n', ".jsonl", 8)
@example(b'{"id": 1, "prompt": "x", "number": [5]}\n', ".jsonl", 8)
@example(b'{"id": 1, "prompt": "x", "trials": {"number": 0}}\n', ".jsonl", 8)
def test_any_file_is_read_or_refused_in_one_line(
    fresh: Callable[[str], Path], content: bytes, suffix: str, packed: int
) -> None:
    path = fresh(suffix)
    if packed < 2:
        path = path.with_name(path.name + ".gz")
        content = gzip.compress(content)
        content = content[: len(content) - 5 * packed]
    path.write_bytes(content)
    for reader in READERS:
        try:
            found = reader(path)
        except TideError as error:
            check_line(error, path)
        else:
            if isinstance(found, RecordFile):
                found.__exit__()
            elif isinstance(found, list) and found and isinstance(found[0], Row):
                assert all(row.text.encode() and type(row.id) in (int, str) for row in found)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**301)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([0, 1, 7, -1, 0.5, "tide", "zero", "m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@examples(60, 3_000)
@given(st.data())
def test_a_run_with_a_field_of_another_kind(
    fresh: Callable[[str], Path], data: st.DataObject
) -> None:
    """A wrong value anywhere in the records or scores: a report, or a one-line error."""
    folder = fresh("")
    folder.mkdir()
    values = [*map(json.loads, [*LINES, *SCORES])]
    number = data.draw(st.integers(0, len(values) - 1))
    place = data.draw(st.sampled_from([*places(values[number])]))
    values[number] = changed(values[number], place, data.draw(VALUES))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, some in (("records", values[: len(LINES)]), ("scores", values[-len(SCORES) :])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))
    try:
        run = read_run(folder)
        for record in run.records:
            assert all(0 <= trial.toxicity <= 1 for trial in record.trials)
        with RecordFile(folder / "records.jsonl", folder / "scores.jsonl") as file:
            assert {record.id for record in run.records} <= file.records.keys()
        made = report(run, draw=False)
        for table in made.tables:
            assert table.rows
    except TideError as error:
        check_line(error, folder)


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
    one = Record(id=row_id, prompt=prompt, trials=trials)
    with RecordFile(path, path.with_name("scores.jsonl")) as file:
        file.add(one)
        assert file.records == {row_id: one}
    assert read_records(path) == [one]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    for name, content in (("a.csv", b"prompt\none\n"), ("a.txt", b"one"), ("a.jsonl", VALID[0])):
        (tmp_path / name).write_bytes(mark + content)
        assert read_rows(tmp_path / name)[0].text == "one"
    path = tmp_path / "records.jsonl"
    path.write_bytes(mark + VALID[4])
    scores = tmp_path / "scores.jsonl"
    scores.write_bytes(mark + VALID[5])
    with RecordFile(path, scores) as file:
        assert [trial.judge_scores["new"] for trial in file.records[0].trials] == [0.25, 0.5]
