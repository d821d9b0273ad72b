"""The authors' checkout becomes what `reproduction/paper.py` reads."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from reproduction.paper import imported

from tests.evaluation.runs import run
from tests.reproduction.published import export
from tide.core.errors import InputError

SCRIPT = Path(__file__).resolve().parents[2] / "reproduction" / "collect.py"


def test_every_file_goes_to_its_model_and_method(tmp_path: Path) -> None:
    responses, setting = tmp_path / "checkout/responses", "temp=0.1-K=3"
    places = {
        "tide": responses / "tide/gemma-2-2b",
        "base": responses / "baselines/gemma-2-2b" / setting,
        "rad-aisteer-50": responses / "baselines/rad-aisteer-50/gemma-2-2b" / setting,
        "rad-50": responses / "baselines/rad-50/gemma-2-2b" / setting,
    }
    for number, (name, folder) in enumerate(places.items()):
        folder.mkdir(parents=True)
        export(run([[number / 10]], name), folder / "rtp.json")
    collect = runpy.run_path(str(SCRIPT))["collect"]
    written = collect(tmp_path / "checkout", tmp_path / "paper")
    assert sorted(path.name for path in written) == sorted(f"{name}.json.gz" for name in places)
    (runs,) = imported(tmp_path / "paper" / "recorded", tmp_path / "runs").values()
    largest = {run_read.name: run_read.records[0].max_toxicity for run_read in runs}
    assert [largest[name] for name in places] == [0.0, 0.1, 0.2, 0.3]
    with pytest.raises((InputError, SystemExit), match=r"no files tide/<model>/rtp\.json; is this"):
        collect(tmp_path, tmp_path / "paper")
