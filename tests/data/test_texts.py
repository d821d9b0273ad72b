from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError
from tide.data.texts import LabelledText, Pair, Row, read_entries, read_rows


def jsonl(path: Path, *rows: Any) -> Path:
    content = "".join(json.dumps(row) + "\n\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        (
            "a.jsonl",
            '{"id": 7, "prompt": "one"}\n\n{"id": "b", "prompt": "two"}',
            [Row(7, "one"), Row("b", "two")],
        ),
        ("a.jsonl.gz", '{"prompt": "one"}\n{"prompt": "two"}\n', [Row(0, "one"), Row(1, "two")]),
        ("a.jsonl", '{"prompt": {"text": "one", "toxicity": 0.1}}\n', [Row(0, "one")]),
        (
            "a.csv",
            'id,prompt\nx,one\ny,"two, with\na line break"\n',
            [Row("x", "one"), Row("y", "two, with\na line break")],
        ),
        ("a.txt", "one \n\ntwo\r\n", [Row(0, "one "), Row(1, "two")]),
        # A byte order mark is skipped.
        ("a.txt", "\ufeffone", [Row(0, "one")]),
        ("a.csv", "\ufeffprompt\none\n", [Row(0, "one")]),
        ("a.jsonl", '\ufeff{"prompt": "one"}\n', [Row(0, "one")]),
    ],
)
def test_prompts_of_every_kind_of_file(
    tmp_path: Path, name: str, content: str, rows: list[Row]
) -> None:
    path, raw = tmp_path / name, content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert read_rows(path) == rows
    assert read_rows(path, limit=1) == rows[:1]
    path.write_bytes(path.read_bytes().replace(b"prompt", b"other!"))
    if name in ("a.csv", "a.jsonl"):
        assert read_rows(path, field="other!") == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"prompt": "one"}\n{"prompt": \n', "line 2: not JSON"),
        ("a.jsonl", b'{"prompt": "one"}\n["two"]\n', "line 2: not a JSON object"),
        ("a.jsonl", b'{"text": "two"}\n', "line 1: no text field 'prompt'; .*--field: text"),
        ("a.jsonl", b'{"messages": []}\n', "line 1: no text field 'prompt'; add --chat"),
        ("a.jsonl", b'{"prompt": null}\n', "line 1: 'prompt' must be a text, got null"),
        ("a.jsonl", b'{"prompt": "one"}\n\n{"prompt": "  "}\n', "line 3: 'prompt' is empty"),
        ("a.jsonl", b'{"id": [1], "prompt": "one"}\n', "line 1: 'id' is neither"),
        ("a.jsonl", b'{"id": 1, "prompt": "a"}\n' * 2, r"line 2: id 1 occurs twice .*line 1\)"),
        ("a.jsonl", b"", "holds no prompts"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "one"}' * 50, mtime=0)[:30], "cannot be read"),
        ("a.csv", b"text,b\none,1\n", "no column .prompt.; name a column with --field: text, b"),
        ("a.csv", b'id,prompt\n1,"one\n2,two\n3,three\n', "line 2: not CSV: unexpected end"),
        ("a.csv", b"prompt\none, two\n", "line 2: has more or fewer fields"),
        ("a.csv", b"prompt\none\0two\n", "line 2: holds a NUL"),
        ("a.csv", "prompt\n\u00e9".encode("utf-16"), "line 1: not UTF-8"),
        ("a.txt", b"\n \n", "holds no prompts"),
        ("a.txt", b"one\ncaf\xe9\n", r"line 2: not UTF-8 text \(byte 4 of the line\)"),
        ("a.parquet", b"x", "unknown kind of file"),
    ],
)
def test_invalid_prompts_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_rows(path)


def test_wrong_paths_and_lone_surrogate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    wrong = {"a.csv": "use .jsonl", "none": "no such file", "x" * 256: "too long", ".": "a folder"}
    for name, message in wrong.items():
        with pytest.raises(InputError, match=message):
            list(read_entries([tmp_path / name]))
    with pytest.raises(InputError, match="id 3: the text is invalid Unicode"):
        Row(3, "caf\udce9")


def test_labelled_texts_pairs_and_trials(tmp_path: Path) -> None:
    rows = jsonl(
        tmp_path / "a.jsonl.gz",
        {"text": "one", "toxicity": 0.25, "source": "x"},
        {"text": "two", "toxicity": 1, "id": 7, "prompt": "p", "number": 0},
        {"text": "", "toxicity": 0, "id": 7, "prompt": "p", "number": 1},
        {"text": " \n", "toxicity": 0, "id": 7, "prompt": "p", "number": 2},
        {"toxic": "silly", "neutral": ["odd", "strange"]},
        {"toxic": "daft", "neutral": ["unwise"]},
        {"toxic": "dumb", "neutral": []},
    )
    assert list(read_entries([rows])) == [
        LabelledText(text="one", toxicity=0.25, group="x"),
        LabelledText(text="two", toxicity=1.0),
        Pair(toxic="silly", neutral=["odd", "strange"]),
        Pair(toxic="daft", neutral=["unwise"]),
        LabelledText(text="dumb", toxicity=1.0, group="pairs"),
    ]
    pair = Pair(toxic="silly", neutral=["odd", "strange"])
    toxicity = {"silly": 1.0, "odd": 0.0, "strange": 0.0}
    assert {labelled.text: labelled.toxicity for labelled in pair.texts} == toxicity


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a", "toxicity": "high"}, "toxicity: .*number"),
        ({"text": "a", "toxicity": True}, "toxicity: .*number"),
        ({"text": "a", "toxicity": 1.5}, "toxicity: .*less than or equal to 1"),
        ({"text": 3, "toxicity": 0}, "text: .*string"),
        ({"number": 0}, "text: Field required"),
        ({"toxic": "a"}, "neutral: Field required"),
        ({"toxic": "a", "neutral": ["b", ""]}, "neutral.1: is empty"),
        ({"toxic": 3, "neutral": ["b"]}, "toxic: .*string"),
        ({"toxic": "a", "neutral": "b"}, "neutral: .*list"),
    ],
)
def test_invalid_labels_are_named(tmp_path: Path, row: Any, message: str) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"text": "fine", "toxicity": 0}, row)
    with pytest.raises(InputError, match=rf"a\.jsonl, line 3: {message}"):
        list(read_entries([path]))
