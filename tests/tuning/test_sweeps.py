from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import InputError
from tide.evaluation import Run, report
from tide.tuning import sweep
from tide.tuning.published import SWEEPS


def swept(out: Path, setting: str, **options: Any) -> list[Run]:
    usual: dict[str, Any] = {
        "model": scripted_engine(),
        "scorer": ReadingScorer(),
        "reference": "none",
        "num_trials": 1,
        "max_iterations": 3,
    }
    return sweep(setting, PROMPTS[:2], out=out, **{**usual, **options})


@pytest.mark.parametrize("setting", [name for name in SWEEPS if name != "num_samples"])
def test_each_table_of_the_paper_is_a_curve(setting: str, tmp_path: Path) -> None:
    runs = swept(tmp_path, setting)
    key = {"mu": "mu_relative"}.get(setting, setting)
    values = [{**r.config["settings"], **r.config["strategy_options"]}[key] for r in runs]
    unit = 1.2 if setting == "mu" else 1.0
    assert values == pytest.approx([unit * value for value in SWEEPS[setting]])
    made = report(runs, tests=False)
    assert f"sensitivity-tide-{key}" in made.figures


def test_multiples_of_a_published_scale_are_absolute(tmp_path: Path) -> None:
    named = scripted_engine()
    named.name = "openai-community/gpt2-large"
    runs = swept(tmp_path, "step_size", values=[0.5, 2], model=named)
    assert [run.config["settings"]["step_size"] for run in runs] == [0.75, 3.0]
    assert {run.config["settings"]["mu"] for run in runs} == {0.1}


def test_any_option_with_values_and_any_method(tmp_path: Path) -> None:
    runs = swept(tmp_path, "growth", values=[1, 1.5], method="fast:to=0.9")
    assert [run.config["strategy_options"]["growth"] for run in runs] == [1.0, 1.5]
    assert {run.config["strategy_options"]["to"] for run in runs} == {0.9}
    with pytest.raises(InputError, match="--values: needed for 'growth'"):
        swept(tmp_path, "growth")
    with pytest.raises(InputError, match="no option 'nothing'"):
        swept(tmp_path, "nothing", values=[1])
