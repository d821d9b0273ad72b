from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tide.core.errors import InputError
from tide.data.prompts import Row, read_rows

ROWS = [Row(7, "one prompt"), Row("b", 'with "quotes", commas')]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_jsonl(tmp_path: Path) -> None:
    lines = [json.dumps({"id": row.id, "prompt": row.text}) for row in ROWS]
    path = write(tmp_path / "a.jsonl", lines[0] + "\n\n" + lines[1])
    assert read_rows(path) == ROWS
    assert read_rows(path, limit=1) == ROWS[:1]


def test_gzipped_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "one"}\n{"prompt": "two"}\n'))
    assert read_rows(path) == [Row(0, "one"), Row(1, "two")]


def test_prompts_as_in_realtoxicityprompts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"prompt": {"text": "one", "toxicity": 0.1}}\n')
    assert read_rows(path) == [Row(0, "one")]


def test_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,prompt\nx,one\ny,"two, with\na line break"\n')
    assert read_rows(path) == [Row("x", "one"), Row("y", "two, with\na line break")]


def test_txt_skips_blank_lines_and_keeps_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one \n\ntwo\r\n")
    assert read_rows(path) == [Row(0, "one "), Row(1, "two")]


def test_another_field(tmp_path: Path) -> None:
    assert read_rows(write(tmp_path / "a.csv", "text\nhello\n"), field="text") == [Row(0, "hello")]


@given(st.lists(st.text(min_size=1).filter(lambda t: t.strip()), min_size=1))
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    assert [row.text for row in read_rows(path)] == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"prompt": "one"}\n{"prompt": \n', "line 2: not JSON"),
        ("a.jsonl", '{"prompt": "one"}\n["two"]\n', "line 2: not a JSON object"),
        (
            "a.jsonl",
            '{"prompt": "one"}\n{"text": "two"}\n',
            "line 2: no text field 'prompt'; name one with --field: text",
        ),
        ("a.jsonl", '{"prompt": 3}\n', "line 1: 'prompt' must be a text, got int"),
        ("a.jsonl", '{"prompt": ["a"]}\n', "line 1: 'prompt' must be a text, got list"),
        ("a.jsonl", '{"prompt": "one"}\n\n{"prompt": "  "}\n', "line 3: 'prompt' is empty"),
        ("a.jsonl", '{"id": [1], "prompt": "one"}\n', "line 1: 'id' is neither"),
        ("a.jsonl", '{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n', r"id 1 again \(line 1"),
        ("a.jsonl", "", "holds no prompts"),
        ("a.csv", "text,b\none,1\n", "no column 'prompt'; name one with --field: text, b"),
        ("a.csv", "id,prompt\n1,one\n2,\n", "line 3: 'prompt' is empty"),
        ("a.txt", "\n \n", "holds no prompts"),
        ("a.parquet", "x", "unknown kind of file"),
    ],
)
def test_bad_files_name_the_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_rows(write(tmp_path / name, content))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="no such file"):
        read_rows(tmp_path / "none")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        read_rows(tmp_path / "latin.txt")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "one"}\n' * 99)[:-9])
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "cut.jsonl.gz")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "folder.txt")
