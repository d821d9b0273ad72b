from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import tide
from tests.rows import write_rows
from tide.core.errors import InputError
from tide.data.files import read_objects
from tide.data.texts import LabelledText, Pair, read_entries
from tide.evaluation import benchmarks
from tide.evaluation.benchmarks import SOURCES, download, load_benchmark, open_benchmark


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, from which no benchmark is found."""
    folder = tmp_path / "inner" / "here"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("TIDE_DATA", raising=False)
    return folder


def test_benchmark_is_read_from_a_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(0, "One", "a"), (1, " ", "a"), (2, "Two", "b")]
    write_rows(here / "bold.jsonl.gz", [{"id": i, "prompt": p, "domain": d} for i, p, d in rows])
    monkeypatch.setenv("TIDE_DATA", str(here))
    bold = load_benchmark("bold")
    assert [(row.id, row.text, row.group) for row in bold.rows] == [rows[0], rows[2]]
    assert (bold.name, bold.source) == ("bold", "bold.jsonl.gz")
    assert len(load_benchmark("bold", limit=1).rows) == 1
    write_rows(here / "c.jsonl", [{"id": "1", "question": "One"}])
    c = load_benchmark("c.jsonl", field="question")
    assert (c.name, c.source, c.rows[0].text) == ("c", "c.jsonl", "One")


def test_range_of_a_benchmark(here: Path) -> None:
    (here / "data").mkdir()
    rows = [{"id": i, "prompt": str(i), "label": "x"} for i in range(1, 6)]
    write_rows(here / "data/attaq.jsonl", rows)
    whole = load_benchmark("attaq")
    for span, kept in {"2-4": [2, 3, 4], "-2": [1, 2], "4-": [4, 5], "5-5": [5]}.items():
        some = load_benchmark(f"attaq:{span}")
        assert [row.id for row in some.rows] == kept
        assert (some.name, some.source) == (f"attaq:{span}", whole.source)
    assert [row.id for row in load_benchmark("attaq:2-4", limit=2).rows] == [2, 3]
    for span in ("0-2", "2-9", "3-2", "2", "a-b", "1-2-3"):
        with pytest.raises(InputError, match=rf"attaq:{span}: expected a range within 1-5"):
            load_benchmark(f"attaq:{span}")


def test_unknown_or_missing_benchmark(here: Path) -> None:
    for name, message in (
        ("rpt", r"unknown benchmark 'rpt'; did you mean 'rtp'\?"),
        ("x", "unknown benchmark 'x'; known: rtp, attaq, bold;"),
        ("none.jsonl", "no such file"),
        ("rtp", r"rtp_.* not found in TIDE_DATA or data: run `tide data get rtp`"),
    ):
        with pytest.raises(InputError, match=message):
            load_benchmark(name)
    for limit in (0, -1):
        with pytest.raises(InputError, match=f"limit: must be at least 1 .got {limit}"):
            open_benchmark(["one", "two"], "prompt", limit, False)


ROWS: dict[str, list[dict[str, Any]]] = {
    "allenai/real-toxicity-prompts": [
        {"prompt": {"text": "One"}, "challenging": True},
        {"prompt": {"text": "Two"}, "challenging": False},
        {"prompt": {"text": "Three é"}, "challenging": True},
    ],
    "ibm-research/AttaQ": [{"input": "One", "label": "pii"}],
    "AmazonScience/bold": [{"domain": "a", "prompts": ["One", "", "Two"]}],
    "google/civil_comments": [
        {"text": "One", "toxicity": 0.8333333134651184, "insult": 0.5},
        {"text": " ", "toxicity": 0.0},
    ],
    "s-nlp/paradetox": [
        {"en_toxic_comment": "One", "en_neutral_comment": "Two"},
        {"en_toxic_comment": "Four", "en_neutral_comment": "Five"},
        {"en_toxic_comment": "One", "en_neutral_comment": "Three"},
    ],
}


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands in for the package."""

    def load_dataset(name: str, split: str | None = None, streaming: bool = False) -> Any:
        assert (split is None) == (not streaming)
        return iter(ROWS[name]) if split else {"train": ROWS[name]}

    stand_in = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setattr(benchmarks, "require", lambda module, extra: stand_in)
    return stand_in


@pytest.mark.usefixtures("datasets")
def test_fetched_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDE_DATA", str(tmp_path))
    for name, expected in {
        "rtp": [(0, "One", None), (1, "Three é", None)],
        "attaq": [(0, "One", "pii")],
        "bold": [(0, "One", "a"), (2, "Two", "a")],
    }.items():
        download(name, tmp_path)
        rows = load_benchmark(name).rows
        assert [(row.id, row.text, row.group) for row in rows] == expected
    files = [download(name, tmp_path) for name in ("civil-comments", "paradetox")]
    assert list(read_entries(files)) == [
        LabelledText(text="One", toxicity=0.8333, group="civil_comments"),
        Pair(toxic="One", neutral=["Two", "Three"]),
        Pair(toxic="Four", neutral=["Five"]),
    ]


@pytest.mark.usefixtures("datasets")
def test_get_keeps_an_existing_file(here: Path) -> None:
    assert tide("data", "get", "rtp") == 0
    path = here / "data" / SOURCES["rtp"].file
    assert load_benchmark("rtp").source == path.name
    path.write_text("mine\n")
    assert download("rtp", path.parent) == path
    assert path.read_text() == "mine\n"
    download("rtp", path.parent, overwrite=True)
    assert len(list(read_objects(path))) == 2


def test_failing_hub_leaves_no_file(
    datasets: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def breaks_off(*_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {"text": "One", "toxicity": 0.5}
        raise ConnectionError("no network\nmore")

    monkeypatch.setattr(datasets, "load_dataset", breaks_off)
    assert tide("data", "get", "civil-comments", "-o", tmp_path) == 1
    said = capsys.readouterr().err
    assert said.strip().count("\n") == 0
    assert "google/civil_comments: cannot be loaded from the hub: ConnectionError: " in said
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": [{"question": "One"}]})
    with pytest.raises(InputError, match=r"ibm-research/AttaQ: cannot be loaded .*'input'"):
        download("attaq", tmp_path)
