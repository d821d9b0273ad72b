"""What searches, long answers and streams give is what was recorded (record.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import CASES, Case, described, read_golden

# Another processor sums in another order, which changes a token of some hundreds that are drawn.
_SAME = 0.97
_TOLERANCE = 2e-4
# Some seconds each; the others take a minute and a half together.
_QUICK = ("random-walk", "backtrack", "backtrack stream")
_CASES = [
    pytest.param(case, id=case.name, marks=[] if case.name in _QUICK else [pytest.mark.slow])
    for case in CASES
]


@pytest.fixture(scope="module")
def golden() -> dict[str, list[list[dict[str, Any]]]]:
    return read_golden()


@pytest.mark.parametrize("case", _CASES)
def test_results_are_those_recorded(
    case: Case, golden: dict[str, list[list[dict[str, Any]]]], shared_data: Path
) -> None:
    expected = golden[case.name]
    found = [described(result) for result in case.results()]
    assert len(found) == len(expected) == case.count
    differing = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not same(a, b)]
    assert len(differing) <= (1 - _SAME) * case.count, differing


def same(a: Any, b: Any) -> bool:
    """Whether two records agree, numbers but for rounding."""
    if isinstance(a, float) and isinstance(b, float | int):
        return abs(a - b) <= _TOLERANCE
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
