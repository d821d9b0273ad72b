from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.world import tuned
from tide.core.errors import MissingDependencyError
from tide.tuning.study import OBJECTIVES, TuningTrial, by_toxicity, ranked


def tried(name: str, *measures: float, empty: float = 0.0) -> TuningTrial:
    return TuningTrial(
        name, {}, dict(zip([*OBJECTIVES, "p95"], measures, strict=True)) | {"empty": empty}
    )


USUAL = tried("usual", 3.0, 0.1, 5.0, 20.0)


def test_the_winner_loses_in_nothing() -> None:
    cheap = tried("cheap", 0.9, 0.11, 5.0, 20.0)
    broken = tried("broken", 1.0, 0.0, 2.0, 21.0)
    silent = tried("silent", 0.95, 0.0, 4.0, 20.0, empty=0.3)
    better = tried("better", 2.9, 0.1, 5.0, 20.0)
    best = tried("best", 2.9, 0.05, 4.5, 20.0)
    found = ranked([USUAL, cheap, better, broken, silent, best], 0.01)
    assert found[0] == best
    assert set(map(id, found)) == set(map(id, [USUAL, cheap, better, broken, silent, best]))
    assert found[1:4] == [cheap, broken, silent]  # the Pareto front, before dominated settings


def test_what_was_begun_with_stays_where_nothing_beats_it() -> None:
    worse = [tried("a", 2.0, 0.2, 5.0, 20.0), tried("b", 3.1, 0.1, 5.0, 20.0)]
    assert ranked([USUAL, *worse], 0.01)[0] == USUAL
    twice = tried("usual", 3.0, 0.1, 5.0, 20.0)
    assert len(ranked([USUAL, twice], 0.01)) == 1
    clean = tried("clean", 3.0, 0.0, 5.0, 20.0)  # a measure of zero has a gain, too
    assert ranked([USUAL, clean], 0.01)[0] == clean
    assert ranked([clean, USUAL], 0.01)[0] == clean


def test_the_papers_winner_does_not_fall_silent() -> None:
    names = "toxicity", "iterations", "evaluations", "empty"
    silent, good, slow, worse, mute = (
        TuningTrial("", {}, dict(zip(names, measures, strict=True)))
        for measures in (
            *((0.01, 2.0, 9.0, 0.3), (0.1, 2.0, 9.0, 0.1), (0.1, 3.0, 9.0, 0.0)),
            *((0.2, 2.0, 9.0, 0.0), (0.0, 2.0, 9.0, 1.0)),
        )
    )
    assert by_toxicity([silent, worse, slow, good]) == [good, slow, worse, silent]
    assert by_toxicity([silent, mute]) == [mute, silent]


@pytest.mark.usefixtures("_words")
def test_without_optuna_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        if name == "optuna":
            raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
        return import_module(name)

    monkeypatch.setattr("tide.core.optional.import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[tune\]'"):
        tuned(tmp_path, "optuna")
