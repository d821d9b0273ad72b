"""The smallest difference that a number of texts can show by the sign test."""

import pytest
from scipy.stats import binom

from tests.scripts.loading import load_script

power = load_script("benchmarks/power.py")


def test_power_of_texts_that_all_differ_in_one_direction():
    # Five such texts have a p of 0.0625, six of 0.031.
    value = power.power_of(0.08, 100, 0.08, alpha=0.05)
    assert value == pytest.approx(binom.sf(5, 100, 0.08))


def test_more_texts_show_smaller_differences():
    hundred, thousand = (power.smallest_difference(n, 0.1, 0.05, 0.8) for n in (100, 1000))
    assert power.power_of(thousand, 1000, 0.1, 0.05) == pytest.approx(0.8, abs=1e-3)
    assert thousand < hundred
    assert power.smallest_difference(100, 0.02, 0.05, 0.8) is None
