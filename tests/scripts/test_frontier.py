"""The figure of the frontier: which point lies where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.evaluation.runs import JUDGE, search_run
from tests.scripts.loading import load_script
from tide.evaluation.metrics import summarize


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/frontier.py")


def test_a_panel_a_temperature_and_one_of_long_answers(script: ModuleType, tmp_path: Path) -> None:
    found = summarize(search_run("tide"))
    rate = found.toxicity[JUDGE]["rate"]
    cleaner = {**found.toxicity, JUDGE: {"rate": replace(rate, value=0.0)}}
    rows = [
        ("backtrack:toxicity_threshold=0.1", found, [JUDGE]),
        ("backtrack:toxicity_threshold=0.2,temperature=1", found, [JUDGE]),
        ("resample:temperature=0.7", found, [JUDGE]),
    ]
    name = "backtrack:max_new_tokens=128,temperature=0.7,toxicity_threshold=0.1"
    answers = [(name, replace(found, toxicity=cleaner), [JUDGE])]
    panels = script.panels_of(rows, answers, 0.1)
    forward = found.averages["forward_tokens"].value
    assert panels == {
        "temperature 0.1": {
            "backtrack": [(forward, rate.value, "0.1")],
            "resample, temperature=0.7": [(forward, rate.value, "")],
        },
        "temperature 1": {"backtrack": [(forward, rate.value, "0.2")]},
        "long answers, worst window": {"backtrack": [(forward, 0.0, "0.1")]},
    }
    assert rate.value > 0
    assert list(script.panels_of(rows[1:2], [], 1.0)) == ["temperature 1"]
    script.draw(panels, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
