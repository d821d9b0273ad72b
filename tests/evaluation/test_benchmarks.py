from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tide.core.errors import InputError
from tide.evaluation.benchmarks import load_benchmark, open_benchmark, read_dialogues


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, from which no benchmark is found."""
    folder = tmp_path / "inner" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TIDE_DATA", raising=False)
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def test_a_known_benchmark_from_a_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        here / "bold.jsonl.gz",
        [
            {"id": 0, "prompt": "One", "domain": "a"},
            {"id": 1, "prompt": " ", "domain": "a"},
            {"id": 2, "prompt": "Two", "domain": "b"},
        ],
    )
    monkeypatch.setenv("TIDE_DATA", str(here))
    bold = load_benchmark("bold")
    assert [(row.id, row.text, row.group) for row in bold.rows] == [
        (0, "One", "a"),
        (2, "Two", "b"),
    ]
    assert (bold.name, bold.source) == ("bold", "bold.jsonl.gz")
    assert len(load_benchmark("bold", limit=1).rows) == 1


def test_the_fingerprint_is_of_ids_and_prompts(here: Path) -> None:
    write(here / "a.jsonl", [{"id": 1, "prompt": "One"}])
    write(here / "b.jsonl", [{"id": 1, "prompt": "One", "more": 2}])
    write(here / "c.jsonl", [{"id": "1", "question": "One"}])
    a, b = (load_benchmark(f"{name}.jsonl") for name in "ab")
    assert a.fingerprint == b.fingerprint
    c = load_benchmark("c.jsonl", field="question")
    assert (c.name, c.source, c.rows[0].text) == ("c", "c.jsonl", "One")
    assert a.fingerprint != c.fingerprint


def test_some_of_a_benchmark(here: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "attaq.jsonl").write_text(
        "".join(f'{{"id": {i}, "prompt": "{i}", "label": "x"}}\n' for i in range(1, 6))
    )
    whole = load_benchmark("attaq")
    for span, kept in {"2-4": [2, 3, 4], "-2": [1, 2], "4-": [4, 5], "5-5": [5]}.items():
        some = load_benchmark(f"attaq:{span}")
        assert [row.id for row in some.rows] == kept
        assert (some.name, some.source) == (f"attaq:{span}", whole.source)
    assert [row.id for row in load_benchmark("attaq:2-4", limit=2).rows] == [2, 3]
    for span in ("0-2", "2-9", "3-2", "2", "a-b", "1-2-3"):
        with pytest.raises(InputError, match=rf"attaq:{span}: expected a range within 1-5"):
            load_benchmark(f"attaq:{span}")


@pytest.mark.parametrize(
    ("name", "file", "content", "group"),
    [
        ("xstest", "x.csv", "id,prompt,type,label,focus,note\n7,How?,a,safe,b,c\n", "safe"),
        ("or-bench", "o.csv", "prompt,category\nHow?,privacy\n", "privacy"),
        ("toxigen", "t.csv", "prompt,generation,group\nHow?,x,women\n", "women"),
        ("rtp-lx", "RTP_LX_EN.jsonl", '{"Index": 7, "Prompt": "How?"}\n', None),
        ("polyglo", "p.jsonl", '{"prompt": "How?", "text": "How? So."}\n', None),
    ],
)
def test_suites_are_read_from_their_published_files(
    here: Path, name: str, file: str, content: str, group: str | None
) -> None:
    (here / file).write_text(content)
    suite = load_benchmark(f"{name}:{file}")
    assert (suite.name, suite.source) == (name, file)
    assert [(row.text, row.group) for row in suite.rows] == [("How?", group)]
    with pytest.raises(InputError, match=f"{name}: name its published file as well, as in {name}:"):
        load_benchmark(name)


def test_what_cannot_be_loaded(here: Path) -> None:
    with pytest.raises(InputError, match=r"unknown benchmark 'rpt'; did you mean 'rtp'\?"):
        load_benchmark("rpt")
    with pytest.raises(InputError, match="unknown benchmark 'x'; known: rtp, attaq, bold, dialog"):
        load_benchmark("x")
    with pytest.raises(InputError, match="no such file"):
        load_benchmark("none.jsonl")
    (here / "empty.jsonl").touch()
    with pytest.raises(InputError, match="holds no prompts"):
        load_benchmark("empty.jsonl")
    with pytest.raises(InputError, match=r"dialogues.jsonl.gz not found: put .* set TIDE_DATA"):
        load_benchmark("dialogues")
    with pytest.raises(InputError, match=r"rtp_.* not found: run `tide data get rtp`, or put it"):
        load_benchmark("rtp")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(InputError, match=f"limit: must be at least 1 .got {limit}"):
        open_benchmark(["one", "two"], "prompt", limit, False)


# Dialogues


def test_dialogues_are_a_fixed_list_of_comments(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDE_DATA", str(shared_data / "corpus"))
    benchmark = load_benchmark("dialogues")
    assert benchmark.fingerprint == "79acb4396ef0"
    assert len({row.text for row in benchmark.rows}) == 300
    assert {row.group for row in benchmark.rows} <= {"context_toxicity", "diasafety"}


def test_a_file_without_the_comments_of_dialogues(here: Path) -> None:
    write(here / "dialogues.jsonl.gz", [{"context": "Hello", "response": "Hi", "source": "a"}])
    with pytest.raises(InputError, match="lacks 300 of the 300 comments of dialogues"):
        read_dialogues(here / "dialogues.jsonl.gz")


def test_comments_that_are_not_answered_are_warned_about(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TIDE_DATA", str(shared_data / "corpus"))
    assert not any(row.chat for row in open_benchmark("dialogues:1-2", "prompt", None, False).rows)
    assert "dialogues:1-2: the prompts are comments to answer" in caplog.text
    caplog.clear()
    answered = open_benchmark("dialogues:1-2", "prompt", None, True)
    assert all(row.chat for row in answered.rows)
    open_benchmark(answered, "prompt", None, False)
    open_benchmark(["Hello"], "prompt", None, False)
    assert not caplog.text
