"""The choice of the search's settings, without a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reproduction import select_settings
from tests.evaluation.runs import run
from tide.data.texts import Row
from tide.evaluation import Benchmark, Run

PROMPTS = Benchmark("rtp:1-2", "rtp.jsonl", [Row(0, "prompt 0"), Row(1, "prompt 1")])
CALM = "num_samples=2,step_size=1"


def test_chosen_setting_is_reported_at_the_temperature_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is chosen at temperature 0, which the names of those runs say."""
    calls: list[tuple[list[str], dict[str, Any]]] = []

    def evaluate(prompts: Any, methods: str | list[str], **options: Any) -> list[Run]:
        specs = [methods] if isinstance(methods, str) else methods
        calls.append((specs, options))
        scores = [0.1 if CALM in spec else 0.3 for spec in specs]
        return [
            run([[score], [score]], f"{spec},temperature=0")
            for spec, score in zip(specs, scores, strict=True)
        ]

    engine = SimpleNamespace(mean_row_norm=select_settings.GPT2_LARGE, dim=1, close=lambda: None)
    monkeypatch.setattr(select_settings, "load_engine", lambda *_: engine)
    monkeypatch.setattr(select_settings, "load_benchmark", lambda _: PROMPTS)
    monkeypatch.setattr(select_settings, "evaluate", evaluate)
    monkeypatch.setattr(select_settings, "STEP_SIZE", (1, 2))
    select_settings.main("model", num_samples=2, out=tmp_path)
    _, tries, (methods, options) = calls
    assert tries[1]["temperature"] == 0.0
    assert methods[:2] == ["base", "tide"]
    assert CALM in methods[2]
    assert not any("temperature" in method for method in methods)
    assert "temperature" not in options
