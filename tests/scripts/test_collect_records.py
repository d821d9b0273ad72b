"""The authors' checkout becomes what `tide report --paper` reads."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

from tests.evaluation.runs import run
from tide.evaluation.paper import recorded_runs, write_published

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "collect_records.py"


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
        write_published(run([[number / 10]], name), folder / "rtp.json")
    collect = runpy.run_path(str(SCRIPT))["collect"]
    written = collect(tmp_path / "checkout", tmp_path / "paper")
    assert sorted(path.name for path in written) == sorted(f"{name}.json.gz" for name in places)
    found = {one.run.name: one for one in recorded_runs(tmp_path / "paper")}
    scores = [found[name].run.records[0].max_toxicity for name in places]
    assert scores == [0.0, 0.1, 0.2, 0.3]
    assert found["rad-aisteer-50"].row == "RAD (beta=50)"
    assert found["rad-50"].row is None
    assert json.loads((places["tide"] / "rtp.json").read_text())


def test_another_folder_is_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "no files tide/<model>/rtp.json; is this instant-detox?" in line
