from __future__ import annotations

from tide.core.results import format_score


def test_score_is_shown_on_its_side_of_the_threshold() -> None:
    assert format_score(0.096, True) == "0.09"
    assert format_score(0.5001, False) == "0.51"
    assert [format_score(score, True) for score in (0.0, 0.29, 1e-300)] == ["0.00", "0.29", "0.00"]
    assert [format_score(score, False) for score in (1.0, 0.57)] == ["1.00", "0.57"]
    assert format_score(0.49999, True, digits=3) == "0.499"
