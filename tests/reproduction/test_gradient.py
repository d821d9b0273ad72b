"""The measurement of the estimate says what its prompts say."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.scripts.loading import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("reproduction/gradient.py")


def prompt(itself: float, cosine: float, passing: float) -> dict[str, Any]:
    scores = {"random": [0.9, 0.1], "8": [0.1] * int(8 * passing) + [0.9] * int(8 - 8 * passing)}
    cosines = {str(count): [cosine, cosine] if count == 8 else [] for count in (1, 8)}
    return {"itself": itself, "size": 792, "cosines": cosines, "scores": scores}


def test_the_cosine_is_corrected_for_the_noise_of_the_reference(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "COUNTS", (1, 8))
    table = script.near([prompt(0.04, 0.01, 1), prompt(0.04, 0.03, 1)])
    (row,) = table.rows  # no estimate of one perturbation differed from zero
    n, measured, lowest, highest, towards, best, bound, share = row
    assert (n, lowest, highest) == (8, 0.01, 0.03)
    assert measured.value == pytest.approx(0.02)
    assert (measured.low, measured.high) == (pytest.approx(0.01), pytest.approx(0.03))
    assert towards.value == pytest.approx(0.02 / 0.2)
    assert best == pytest.approx(0.1)
    assert bound == pytest.approx((8 / 792) ** 0.5)
    assert share == pytest.approx(1.0)
    monkeypatch.setattr(script, "COUNTS", (8,))
    (row,) = script.near([prompt(-0.01, 0.01, 1)]).rows  # a reference that is noise alone
    assert (row[4], row[7]) == (None, None)


def test_a_step_is_compared_with_a_random_one_on_the_same_prompts(script: ModuleType) -> None:
    table = script.worth([prompt(0.04, 0.01, 1), prompt(0.04, 0.01, 0.5)])
    rows = {row[0]: row for row in table.rows}
    assert rows["random"][1].value == 0.5
    assert rows["8"][1].value == 0.75
    assert rows["8"][2].value == 0.25
    assert (rows["8"][2].low, rows["8"][2].high) == (0.0, 0.5)
