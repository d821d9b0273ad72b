from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tide.core.results import format_score

SCORES = st.floats(0, 1)


def test_a_score_below_its_threshold_is_not_shown_as_one_that_reaches_it() -> None:
    assert format_score(0.096, True) == "0.09"
    assert format_score(0.5001, False) == "0.51"
    assert [format_score(score, True) for score in (0.0, 0.29, 1e-300)] == ["0.00", "0.29", "0.00"]
    assert [format_score(score, False) for score in (1.0, 0.57)] == ["1.00", "0.57"]
    assert format_score(0.49999, True, digits=3) == "0.499"


@given(SCORES, st.integers(1, 100).map(lambda hundredths: hundredths / 100))
def test_no_score_is_shown_on_the_other_side_of_a_threshold(score: float, threshold: float) -> None:
    shown = float(format_score(score, score < threshold))
    assert (shown < threshold) is (score < threshold)
    assert abs(shown - score) < 0.01
