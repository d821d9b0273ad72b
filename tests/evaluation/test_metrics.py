from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import bootstrap

from tests.evaluation.runs import JUDGE, record, run, search_run
from tide.errors import InputError
from tide.evaluation import metrics
from tide.evaluation.metrics import summarize
from tide.evaluation.runs import Run
from tide.seeds import derive_seed


def test_toxicity_is_averaged_over_prompts_of_their_own_maximum_and_mean() -> None:
    found = summarize(run([[0.1, 0.9], [0.2, 0.4], [0.5, 0.5]])).toxicity["scorer@1"]
    assert found["max"].value == pytest.approx((0.9 + 0.4 + 0.5) / 3)
    assert found["mean"].value == pytest.approx((0.5 + 0.3 + 0.5) / 3)
    assert found["rate"].value == pytest.approx(1 / 3)


def test_the_protocol_says_whether_the_threshold_itself_is_toxic() -> None:
    protocol = {"toxic_threshold": 0.5, "toxic_inclusive": True}
    inclusive = run([[0.5], [0.2]], protocol=protocol)
    assert summarize(inclusive).toxicity["scorer@1"]["rate"].value == 0.5
    assert summarize(run([[0.5], [0.2]])).toxicity["scorer@1"]["rate"].value == 0.0


def test_every_judge_beside_the_scorer() -> None:
    one = Run("base", run([[0.1]]).config, [record(0, [0.1], [0.7]), record(1, [0.2], [0.9])])
    summary = summarize(one)
    assert list(summary.toxicity) == ["scorer@1", JUDGE]
    assert summary.toxicity[JUDGE]["max"].value == pytest.approx(0.8)


def test_intervals_are_those_of_scipy() -> None:
    scores = np.random.default_rng(1).random((40, 3))
    found = summarize(run(scores.tolist()), seed=5).toxicity["scorer@1"]["max"]
    expected = bootstrap(
        (scores.max(axis=1),),
        np.mean,
        n_resamples=metrics._RESAMPLES,
        method="percentile",
        vectorized=True,
        random_state=np.random.default_rng(derive_seed(5, "bootstrap")),
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_of_a_mean_over_completions_resamples_prompts() -> None:
    one = run([[0.1, 0.1]] * 30)
    values = np.random.default_rng(2).uniform(1, 9, (30, 2))
    rows = values.tolist()
    rows[4][1] = None
    one = replace(one, perplexity=dict(enumerate(rows)))
    summary = summarize(one, seed=3)
    sums, counts = values.sum(axis=1), np.full(30, 2.0)
    sums[4], counts[4] = values[4, 0], 1
    expected = bootstrap(
        (sums, counts),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        n_resamples=metrics._RESAMPLES,
        method="percentile",
        paired=True,
        vectorized=True,
        random_state=np.random.default_rng(derive_seed(3, "bootstrap")),
    ).confidence_interval
    found = summary.averages["perplexity"]
    assert found.value == pytest.approx(sums.sum() / 59)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert summary.without_perplexity == 1
    assert summary.perplexity_median == pytest.approx(
        np.median([v for row in rows for v in row if v is not None])
    )


def test_distinct_ngrams_over_words_of_a_prompt_as_in_dexperts() -> None:
    one = run([[0.1, 0.1], [0.1, 0.1]])
    one.records[0]["completions"] = ["one two one", "one two"]
    one.records[1]["completions"] = ["", " "]  # no words: no value, not zero
    averages = summarize(one).averages
    assert averages["dist_1"].value == pytest.approx(2 / 5)
    assert averages["dist_2"].value == pytest.approx(2 / 5)
    assert averages["dist_3"].value == pytest.approx(1 / 5)
    assert averages["empty"].value == 0.5


def test_costs_count_all_trials_of_a_prompt_and_iterations_are_of_a_trial() -> None:
    one = search_run("tide")
    averages = summarize(one).averages
    spent = [sum(r["evaluations"]) for r in one.records]
    assert averages["evaluations"].value == pytest.approx(np.mean(spent))
    assert averages["iterations"].value == 2.0
    assert averages["seconds"].value == 0.5
    unresolved = np.mean([not all(r["accepted"]) for r in one.records])
    assert averages["unresolved"].value == pytest.approx(unresolved)


def test_what_was_not_recorded_is_absent() -> None:
    summary = summarize(run([[0.1], [0.2]]))
    assert not {"iterations", "evaluations", "perplexity", "seconds", "refused"} & set(
        summary.averages
    )
    assert summary.without_perplexity is None


def test_a_withheld_text_keeps_its_score_and_is_no_empty_completion() -> None:
    one = run([[0.9], [0.1]])
    one.records[0] |= {"completions": [""], "refused": [True]}
    one.records[1] |= {"refused": [False]}
    summary = summarize(one)
    assert summary.toxicity["scorer@1"]["rate"].value == 0.5
    assert summary.averages["refused"].value == 0.5
    assert summary.averages["empty"].value == 0.0


def test_a_single_prompt_has_values_without_intervals() -> None:
    found = summarize(run([[0.9, 0.2]])).toxicity["scorer@1"]["max"]
    assert (found.value, found.low, found.half_width) == (0.9, None, None)


def test_broken_perplexities_go_to_json() -> None:
    one = replace(run([[0.1], [0.2]]), perplexity={0: [1e304], 1: [2.0]})
    found = json.loads(json.dumps(summarize(one).to_dict(), allow_nan=False))
    assert found["averages"]["perplexity"]["value"] == 5e303
    infinite = replace(one, perplexity={0: [math.inf], 1: [2.0]})
    found = json.loads(json.dumps(summarize(infinite).to_dict(), allow_nan=False))
    assert found["averages"]["perplexity"]["value"] is None
    assert found["toxicity"]["scorer@1"]["max"]["value"] == pytest.approx(0.15)


def test_equal_seeds_give_equal_intervals() -> None:
    one = search_run("tide")
    assert summarize(one, seed=1) == summarize(one, seed=1)
    assert summarize(one, seed=1) != summarize(one, seed=2)


def test_exact_20_drops_completions_of_other_lengths_and_says_how_many() -> None:
    one = run([[0.9, 0.2], [0.6, 0.4], [0.1, 0.1]])
    tokens = {0: [19, 20], 1: [20, 20], 2: [21, 1]}
    one = replace(one, reference_tokens=tokens, perplexity={i: [2.0, 4.0] for i in range(3)})
    summary = summarize(one, valid="exact-20")
    assert (summary.dropped, summary.completions, summary.valid) == (3, 3, "exact-20")
    assert summary.toxicity["scorer@1"]["max"].value == pytest.approx((0.2 + 0.6) / 2)
    assert summary.averages["perplexity"].value == pytest.approx((4 + 2 + 4) / 3)
    assert summarize(one).dropped == 0


def test_exact_20_needs_lengths() -> None:
    with pytest.raises(InputError, match="measure the perplexity first"):
        summarize(run([[0.1]]), valid="exact-20")


def test_records_that_cannot_be_used_are_refused_by_id() -> None:
    missing = run([[0.1, 0.2], [0.3]])
    with pytest.raises(InputError, match="record 1 has 1 of 2 trials"):
        summarize(missing)
    planned = run([[0.1]], protocol={"num_trials": 3})
    with pytest.raises(InputError, match="record 0 has 1 of 3 trials"):
        summarize(planned)
    unjudged = run([[0.1], [0.2]])
    unjudged.records[1]["judge_scores"] = {}
    with pytest.raises(InputError, match=f"record 1 has no scores of judge '{JUDGE}'"):
        summarize(unjudged)
    uneven = run([[0.1]])
    uneven.records[0]["evaluations"] = [1, 2]
    with pytest.raises(InputError, match="record 0: evaluations has not one entry a trial"):
        summarize(uneven)
    twice = run([[0.1], [0.2]])
    twice.records[1]["id"] = 0
    with pytest.raises(InputError, match="record 0 is there 2 times"):
        summarize(twice)
    step = search_run("tide")
    step.records[4]["steps"][1][0]["judge_scores"] = {}
    with pytest.raises(InputError, match="record 4: a step has no scores of judge"):
        summarize(step)
