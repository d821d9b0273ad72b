from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scorers.wrappers.stand_ins import TwoSides
from tide.core.errors import InputError
from tide.scorers import load_scorer
from tide.scorers.assessment import agreement
from tide.scorers.base import ask_attributes
from tide.scorers.wrappers.calibration import CalibratedScorer, Calibration, fit

unit = st.floats(0, 1, allow_subnormal=False)


@given(st.lists(st.tuples(unit, unit), min_size=1, max_size=50))
def test_a_fit_rises_stays_in_range_and_survives_a_file(pairs: list[tuple[float, float]]) -> None:
    scores, labels = np.array(pairs).T
    calibration = fit("pocket", "pocket@1", "labels.jsonl", scores, labels)
    grid = np.linspace(0, 1, 101)
    mapped = calibration(grid)
    assert ((mapped >= 0) & (mapped <= 1)).all()
    assert (np.diff(mapped) >= 0).all()
    again = Calibration.model_validate_json(calibration.model_dump_json())
    np.testing.assert_array_equal(again(grid), mapped)


def test_a_fit_calibrates() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random((2, 5000))
    labels = (rng.random((2, 5000)) < truth).astype(float)
    raw = truth**3
    calibration = fit("pocket", "pocket@1", "labels.jsonl", raw[0], labels[0])
    before, after = agreement(raw[1], labels[1]), agreement(calibration(raw[1]), labels[1])
    assert after.calibration_error < 0.04 < before.calibration_error
    assert after.auc > before.auc - 0.01


def test_a_calibrated_scorer(tmp_path: Path) -> None:
    pocket = load_scorer("pocket")
    texts = ["Have a nice day", "you stupid idiot"]
    low, high = pocket.score(texts)
    path = tmp_path / "calibration.json"
    calibration = fit("pocket", pocket.name, "a", np.array([low, high]), np.array([0.25, 0.75]))
    path.write_text(calibration.model_dump_json())
    scorer = load_scorer(f"calibrated:{path}")
    assert scorer.score(texts) == pytest.approx([0.25, 0.75])
    assert scorer.name.startswith("calibrated@")
    assert scorer.name.endswith(f":{pocket.name}")
    other = calibration.model_copy(update={"calibrated": (0.2, 0.8), "name": TwoSides.name})
    path.write_text(other.model_dump_json())
    mapped, inner = CalibratedScorer(path, TwoSides()), TwoSides().score_attributes(texts)
    found = ask_attributes(mapped, texts)  # attributes are not calibrated
    assert found.values == pytest.approx(other(inner.values))
    assert found.attributes["threat"] == pytest.approx(inner.attributes["threat"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "pocket@00000000"}, "was fitted for pocket@00000000, not pocket@"),
        ({"format": "another"}, "not a calibration: format"),
        ({"raw": [0.5, 0.2]}, "must rise"),
        ({"calibrated": [0.5, 0.2]}, "must rise"),
        ({"calibrated": [0.5]}, "differ in length"),
        ({"calibrated": [0.5, 1.5]}, "calibrated.1"),
        ({"raw": [], "calibrated": []}, "raw"),
    ],
)
def test_files_that_are_no_calibration_of_this_scorer(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    name = load_scorer("pocket").name
    made = fit("pocket", name, "a", np.array([0.1, 0.9]), np.array([0.0, 1.0]))
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(made.model_dump() | change))
    with pytest.raises(InputError, match=message) as caught:
        load_scorer(f"calibrated:{path}")
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_scorer(f"calibrated:{tmp_path / 'none.json'}")
    with pytest.raises(InputError, match="cannot be read"):
        load_scorer("calibrated:a\0b")
    with pytest.raises(InputError, match="has more than 1 MiB"):
        load_scorer("calibrated:/dev/zero")
