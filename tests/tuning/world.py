"""A scripted model and prompts for tuning, without downloads."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.evaluation.test_comparison import Judge, WordCount
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.data.prompts import Row
from tide.evaluation import Benchmark, Progress, report
from tide.tuning import Tuned, tune
from tide.tuning import tuner as tuning

TEXTS = [
    f"{prompt} and {more}" for more in ("this", "that there", "more of it") for prompt in PROMPTS
]
WORLD = Benchmark("world", "made up", [Row(f"p{i}", text) for i, text in enumerate(TEXTS)])


@pytest.fixture
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Reference", WordCount)
    monkeypatch.setattr(WordCount, "close", lambda self: None, raising=False)


def tuned(out: Path, search: str, *, draw: bool = False, **options: Any) -> Tuned:
    """draw: also draw the figures, which takes longest."""
    usual: dict[str, Any] = {
        "model": scripted_engine(),
        "scorer": ReadingScorer(),
        "judges": [Judge()],
        "reference": "words",
        "max_iterations": 4,
    }
    if search == "paper":
        usual |= {"above": 0.5, "grid_scale": "1"}
    with ExitStack() as stack:
        if not draw:
            plain = functools.partial(report, draw=False)
            stack.enter_context(patch.object(tuning, "report", plain))
            stack.enter_context(patch.object(tuning, "figures", lambda study: {}))
        return tune(WORLD, search=search, out=out, **{**usual, **options})


class Killed(BaseException):
    """Stands in for a signal that kills the process."""


class Kills(Progress):
    """Kills the run after `after` prompts."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise Killed
