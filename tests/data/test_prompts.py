from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tide.core.errors import InputError
from tide.data.texts import Row, read_rows


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
    ],
)
def test_every_kind_of_file(tmp_path: Path, name: str, content: str, rows: list[Row]) -> None:
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
        (
            "a.jsonl",
            b'{"prompt": "one"}\n{"text": "two"}\n',
            "line 2: no text field 'prompt'; name a field with --field: text",
        ),
        ("a.jsonl", b'{"messages": []}\n', "line 1: no text field 'prompt'; add --chat"),
        ("a.jsonl", b'{"prompt": 3}\n', "line 1: 'prompt' must be a text, got int"),
        ("a.jsonl", b'{"prompt": "one"}\n\n{"prompt": "  "}\n', "line 3: 'prompt' is empty"),
        ("a.jsonl", b'{"id": [1], "prompt": "one"}\n', "line 1: 'id' is neither"),
        ("a.jsonl", b'{"id": true, "prompt": "one"}\n', "line 1: 'id' is neither"),
        ("a.jsonl", b'{"id": 1, "prompt": "a"}\n' * 2, r"line 2: id 1 occurs twice .*line 1\)"),
        ("a.jsonl", b"", "holds no prompts"),
        ("a.jsonl", b'{"prompt": "one", "id": "\\udc00"}\n', "line 1: not JSON: .*hex escape"),
        ("a.jsonl", b'{"prompt": "\xff"}\n', "line 1: not JSON: invalid unicode"),
        ("a.jsonl", b'{"id": ' + b"9" * 5000 + b"}\n", "line 1: not JSON: number out of range"),
        ("a.jsonl", b'{"id": ' + b"[" * 5000 + b"\n", "line 1: not JSON: recursion limit"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "one"}' * 50, mtime=0)[:30], "cannot be read"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 40, "cannot be read"),
        (
            "a.csv",
            b"text,b\none,1\n",
            "no column .prompt.; name a column with --field: text, b",
        ),
        ("a.csv", b"id,prompt\n1,one\n2,\n", "line 3: 'prompt' is empty"),
        ("a.csv", b'id,prompt\n1,"one\n2,two\n3,three\n', "line 2: not CSV: unexpected end"),
        ("a.csv", b"prompt\none, two\n", "line 2: has more or fewer fields"),
        ("a.csv", b"id,prompt\n1\n", "line 2: has more or fewer fields"),
        ("a.csv", b"prompt\n" + b"x" * 200_000 + b"\n", "line 2: not CSV: field larger"),
        ("a.csv", b"prompt\none\0two\n", "line 2: holds a NUL"),
        ("a.csv", "prompt\n\u00e9".encode("utf-16"), "line 1: not UTF-8"),
        ("a.txt", b"\n \n", "holds no prompts"),
        ("a.txt", b"one\ncaf\xe9\n", r"line 2: not UTF-8 text \(byte 4 of the line\)"),
        ("a.parquet", b"x", "unknown kind of file"),
        ("none.jsonl", None, "no such file"),
        ("none", None, "no such file"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)
    assert "xxxx" not in str(caught.value)


def test_a_text_typed_in_a_shell_that_is_no_text() -> None:
    with pytest.raises(InputError, match="id 3: the text is invalid Unicode"):
        Row(3, "caf\udce9")
