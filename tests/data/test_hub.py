from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import tide
from tide.core.errors import InputError
from tide.data import hub
from tide.data.files import read_objects
from tide.data.hub import SOURCES, get
from tide.data.texts import LabelledText, Pair, read_entries, read_rows
from tide.evaluation.benchmarks import BENCHMARKS, load_benchmark

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


class Datasets:
    """Stands in for `datasets`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def load_dataset(self, name: str, split: str | None = None, streaming: bool = False) -> Any:
        assert (split is None) == (not streaming)
        self.asked.append(name)
        return iter(ROWS[name]) if split else {"train": ROWS[name]}


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> Datasets:
    stand_in = Datasets()
    monkeypatch.setattr(hub, "require", lambda module, extra: stand_in)
    return stand_in


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.usefixtures("datasets")
def test_fetched_benchmark_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDE_DATA", raising=False)
    assert tide("data", "get", name) == 0
    benchmark = load_benchmark(name)
    assert benchmark.source == SOURCES[name].file
    assert benchmark.rows


def test_fetched_labelled_texts_are_read(datasets: Datasets, tmp_path: Path) -> None:
    files = [get(name, tmp_path) for name in ("civil-comments", "paradetox")]
    assert list(read_entries(files)) == [
        LabelledText("One", 0.8333, "civil_comments"),
        Pair("One", ("Two", "Three")),
        Pair("Four", ("Five",)),
    ]


def test_get_keeps_an_existing_file(
    datasets: Datasets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TIDE_DATA", str(tmp_path))
    assert tide("data", "get", "rtp") == 0
    path = tmp_path / SOURCES["rtp"].file
    assert path.name in capsys.readouterr().err.replace("\n", "")
    assert [(row.id, row.text) for row in read_rows(path)] == [(0, "One"), (1, "Three é")]
    path.write_text("mine\n")
    assert get("rtp", tmp_path) == path
    assert path.read_text() == "mine\n"
    get("rtp", tmp_path, overwrite=True)
    assert len(list(read_objects(path))) == 2
    assert len(datasets.asked) == 2


def test_failing_hub_leaves_no_file(
    datasets: Datasets,
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
    assert "google/civil_comments: cannot be loaded from the hub (no network)" in said
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(datasets, "load_dataset", lambda name: {"train": [{"question": "One"}]})
    with pytest.raises(InputError, match=r"ibm-research/AttaQ: cannot be loaded .*'input'"):
        get("attaq", tmp_path)
