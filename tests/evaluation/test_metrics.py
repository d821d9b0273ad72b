from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import bootstrap

from tests.evaluation.runs import JUDGE, REFERENCE, changed, measured, record, run, search_run
from tide.core.settings import derive_seed
from tide.evaluation import metrics
from tide.evaluation.metrics import summarize
from tide.evaluation.tables import Column


@pytest.mark.parametrize(("inclusive", "rate", "each"), [(False, 1 / 3, 1 / 6), (True, 2 / 3, 0.5)])
def test_toxicity_averages_maximum_and_mean_of_prompts(
    inclusive: bool, rate: float, each: float
) -> None:
    protocol = {"toxic_inclusive": inclusive}
    made = run([[0.1, 0.9], [0.2, 0.4], [0.5, 0.5]], protocol=protocol)
    values = summarize(made).toxicity["scorer@1"]
    assert values["max"].value == pytest.approx((0.9 + 0.4 + 0.5) / 3)
    assert values["mean"].value == pytest.approx((0.5 + 0.3 + 0.5) / 3)
    assert (values["rate"].value, values["each"].value) == pytest.approx((rate, each))


def test_values_that_were_not_recorded_are_absent() -> None:
    """A single prompt has values, but no intervals."""
    summary = summarize(run([[0.9, 0.2]], num_prompts=4))
    largest = summary.toxicity["scorer@1"]["max"]
    assert (largest.value, largest.low, largest.high) == (0.9, None, None)
    absent = {"iterations", "evaluations", "seconds", "refused", "unresolved"}
    assert not absent & set(summary.averages)
    assert summary.fluency == {}
    assert summary.missing == 3


def test_changed_counts_harmless_completions() -> None:
    base = run([[0.05, 0.3], [0.05, 0.05], [0.05, 0.9]])
    base.records[2] = record(2, [0.05, 0.9], [0.6, 0.2])
    other = run([[0.0, 0.0]] * 3, "backtrack", settings={"toxicity_threshold": 0.1})
    for number, same in ((0, 0), (1, 1), (2, 0)):
        texts = ["kinder", "kinder"]
        texts[same] = base.records[number].trials[same].text
        changed(other, number, text=texts)
    toxicity = summarize(other, unmodified_run=base).toxicity
    assert toxicity["scorer@1"]["changed"].value == pytest.approx(1 / 4)
    # All pass but one; 0.3 is above the search's threshold, but not toxic for a judge.
    assert toxicity[JUDGE]["changed"].value == pytest.approx(3 / 5)
    assert "changed" not in summarize(other).toxicity["scorer@1"]
    assert summarize(base, unmodified_run=base).toxicity["scorer@1"]["changed"].value == 0.0


def test_interval_holds_its_value() -> None:
    """The mean of many equal scores may differ from each by rounding."""
    for count in (7, 99, 150):
        mean = summarize(run([[0.1]] * count)).toxicity["scorer@1"]["mean"]
        assert mean.low <= mean.value <= mean.high  # type: ignore[operator]


def test_interval_resamples_prompts() -> None:
    values = np.random.default_rng(2).uniform(1, 9, (30, 2))
    rows = values.tolist()
    rows[4][1] = None
    summary = summarize(measured(run([[0.1, 0.1]] * 30), rows))
    sums, counts = values.sum(axis=1), np.full(30, 2.0)
    sums[4], counts[4] = values[4, 0], 1
    expected = bootstrap(
        (sums, counts),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        n_resamples=metrics._RESAMPLES,
        method="percentile",
        paired=True,
        vectorized=True,
        random_state=np.random.default_rng(derive_seed(0, "bootstrap")),
    ).confidence_interval
    fluency = summary.fluency[REFERENCE]
    mean = fluency["mean"]
    assert summary.perplexity == mean
    assert mean.value == pytest.approx(sums.sum() / 59)
    assert (mean.low, mean.high) == pytest.approx((expected.low, expected.high))
    known = [value for row in rows for value in row if value is not None]
    assert fluency["median"].value == pytest.approx(np.median(known))


def test_distinct_ngrams_as_in_dexperts() -> None:
    sample_run = run([[0.1, 0.1], [0.1, 0.1]])
    changed(sample_run, 0, text=["one two one", "one two"])
    changed(sample_run, 1, text=["", " "])  # without words there is no value, instead of zero
    averages = summarize(sample_run).averages
    assert averages["dist_2"].value == pytest.approx(2 / 5)
    assert averages["dist_3"].value == pytest.approx(1 / 5)
    assert averages["empty"].value == 0.5


def test_summary_does_not_depend_on_the_order_of_records() -> None:
    sample_run = search_run("tide")
    assert summarize(replace(sample_run, records=sample_run.records[::-1])) == summarize(sample_run)


def test_withheld_text_keeps_its_score() -> None:
    sample_run = run([[0.9], [0.1]])
    changed(sample_run, 0, text=[""], refused=[True])
    changed(sample_run, 1, refused=[False])
    summary = summarize(sample_run)
    assert summary.toxicity["scorer@1"]["rate"].value == 0.5
    assert summary.averages["refused"].value == 0.5
    assert summary.averages["empty"].value == 0.0
    # Nothing tells whether the text that was withheld loops.
    assert summary.averages["degenerate"].value == 0.0


def test_empty_first_completion_is_not_unresolved() -> None:
    sample_run = run([[0.0], [0.0], [0.3], [0.0]])
    for number in range(3):
        changed(sample_run, number, text=[""], accepted=[False])
    changed(sample_run, 3, text=["a word or two"], accepted=[True])
    assert summarize(sample_run).averages["unresolved"].value == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("toxic", "other", "low", "high"),
    # The interval of 15 of 148 is in Newcombe (1998).
    [(0, 30, 0.0, 0.1135), (15, 133, 0.0624, 0.1605), (1, 0, 0.2065, 1.0)],
)
def test_shares_have_wilson_intervals(toxic: int, other: int, low: float, high: float) -> None:
    rate = summarize(run([[0.9]] * toxic + [[0.1]] * other)).toxicity["scorer@1"]["rate"]
    expected = (toxic / (toxic + other), low, high)
    assert (rate.value, rate.low, rate.high) == pytest.approx(expected, abs=5e-5)
    if toxic == 0:
        assert Column("toxic rate", interval=True).show(rate) == "0.000 [0.000, 0.114]"
