"""The authors' records: their checkout is arranged, read, and written as it came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reproduction.collect import collect
from reproduction.paper import from_published, imported

from tests.evaluation.runs import run
from tests.reproduction.published import export, to_published
from tide.core.errors import InputError
from tide.data.files import read_whole


@pytest.mark.parametrize("method", ["base", "tide"])
def test_the_authors_records_come_back(shared_data: Path, method: str) -> None:
    """Reading and writing keeps the ids, prompts, averages and known lists of a whole file."""
    path = shared_data / "paper/recorded/qwen3-4b" / f"{method}.json.gz"
    rows = json.loads(read_whole(path))
    assert len(rows) == 1199
    for values in rows:
        again = to_published(from_published(values, "a file"))
        lists = {"num_iter_steps", "cosine_sims"} if method == "tide" else set()
        assert again.keys() >= {"id", "prompt", "completions", "toxicity_scores", *lists}
        assert again == {name: values[name] for name in again}


def test_every_file_goes_to_its_model_and_method(tmp_path: Path) -> None:
    responses, setting = tmp_path / "checkout/responses", "temp=0.1-K=3"
    folders = {
        "tide": responses / "tide/gemma-2-2b",
        "base": responses / "baselines/gemma-2-2b" / setting,
        "rad-aisteer-50": responses / "baselines/rad-aisteer-50/gemma-2-2b" / setting,
        "rad-50": responses / "baselines/rad-50/gemma-2-2b" / setting,
    }
    for number, (name, folder) in enumerate(folders.items()):
        export(run([[number / 10]], name), folder / "rtp.json")
    written = collect(tmp_path / "checkout", tmp_path / "paper")
    assert sorted(path.name for path in written) == sorted(f"{name}.json.gz" for name in folders)
    (runs,) = imported(tmp_path / "paper" / "recorded", tmp_path / "runs").values()
    largest = {run_read.name: run_read.records[0].worst.toxicity for run_read in runs}
    assert [largest[name] for name in folders] == [0.0, 0.1, 0.2, 0.3]
    with pytest.raises(InputError, match=r"no files tide/<model>/rtp\.json; is this"):
        collect(tmp_path, tmp_path / "paper")
