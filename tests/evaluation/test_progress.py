from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tide import evaluation
from tide.evaluation.progress import Bars, Progress


class Told(Progress):
    def __init__(self) -> None:
        self.written: list[list[float]] = [[]]  # by the number of prompts that are done

    def advance(self, count: int = 1) -> None:
        self.written += [[] for _ in range(count)]

    def under_way(self, count: float) -> None:
        self.written[-1].append(count)


def test_other_systems_tell_what_they_have_written_of_a_batch(tmp_path: Path) -> None:
    told = Told()
    prompts = [f"The weather in town {number} is" for number in range(5)]
    options = {"reference": "none", "num_trials": 1, "engine_options": {"max_batch": 3}}
    evaluation.evaluate(
        prompts, "self-debias", out=tmp_path, progress=told, max_new_tokens=12, **options
    )
    first, *nothing, last = [told.written[count] for count in (0, 1, 2, 4, 5, 3)]
    assert nothing == [[]] * 4
    for written, count in ((first, 3), (last, 2)):  # batches of up to three
        assert written == sorted(set(written))
        assert len(written) >= 4
        assert written[-1] == pytest.approx(count)


def test_a_bar_shows_what_is_written_and_never_goes_back() -> None:
    bars = Bars(Console(force_terminal=True, file=io.StringIO()))
    bars.begin("rad", 5)
    task = bars._bar.tasks[0]
    shown = []
    for count in (1.5, 3.0):
        bars.under_way(count)
        shown.append(task.completed)
    for count in (1, 1, 1):
        bars.advance(count)
        shown.append(task.completed)
    bars.under_way(0.5)
    shown.append(task.completed)
    bars.end()
    assert shown == [1.5, 3.0, 3.0, 3.0, 3.0, 3.5]
