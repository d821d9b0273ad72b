"""What searches, long answers and streams give is what was recorded (record.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import CASES, Case, described, machine, read_golden

# Another processor sums in another order, which changes a token of some hundreds that are drawn.
_ROWS_ELSEWHERE = 0.1
_TOLERANCE = 2e-4


@pytest.mark.parametrize("scope", ["quick", pytest.param("all", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_those_recorded(case: Case, scope: str, shared_data: Path) -> None:
    """All of them on the machine that recorded; elsewhere all but one, or one of ten."""
    recorded_on, recorded = read_golden()
    count = case.quick if scope == "quick" else case.count
    expected = recorded[case.name][:count]
    results = [described(result) for result in case.results(count)]
    assert len(results) == len(expected) == count
    pairs = zip(results, expected, strict=True)
    differing = [row for row, (result, known) in enumerate(pairs) if not same(result, known)]
    allowed = 0 if recorded_on == machine() else max(1, int(_ROWS_ELSEWHERE * count))
    assert len(differing) <= allowed, differing


def same(a: Any, b: Any) -> bool:
    """Whether two records agree, numbers but for rounding."""
    if isinstance(a, float) and isinstance(b, float | int):
        return abs(a - b) <= _TOLERANCE
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
