"""Seeds are pooled by prompt, and methods compared on the seeds and prompts that both have."""

from __future__ import annotations

import numpy as np
import pytest

from tests.evaluation.runs import JUDGE, changed, record, run
from tests.scripts.loading import load_script
from tide.core.errors import InputError
from tide.evaluation.runs import Run

first_page = load_script("reproduction/first_page.py")


def seeds(*scores: list[float], name: str = "backtrack") -> dict[int, Run]:
    """One run per seed, with a score for each prompt."""
    return {seed: run([[score] for score in of_seed], name) for seed, of_seed in enumerate(scores)}


def test_pooled_runs_have_a_trial_for_each_seed() -> None:
    """Prompts that a seed lacks are left out."""
    pooled = first_page.pooled(seeds([0.1, 0.9, 0.5], [0.2, 0.8]))
    scores = [[trial.toxicity for trial in record.trials] for record in pooled.records]
    assert scores == [[0.1, 0.2], [0.9, 0.8]]
    assert [trial.number for trial in pooled.records[0].trials] == [0, 1]
    assert pooled.config["num_trials"] == 2


def test_table_names_a_method_without_scores_of_a_judge() -> None:
    runs = seeds([0.9], name="base")
    changed(runs[0], 0, judge_scores={JUDGE: [None]})
    with pytest.raises(InputError, match=f"base: a run has no scores of {JUDGE}"):
        first_page.table({"base": runs}, {})


def test_methods_are_compared_on_common_seeds() -> None:
    """By the toxic shares of each prompt."""
    walk = seeds([0.9, 0.1], [0.1, 0.1], [0.9, 0.9])
    default = seeds([0.1, 0.1], [0.1, 0.9])
    pair = first_page.on_common_seeds(walk, default)
    assert [len(pooled.records[0].trials) for pooled in pair] == [2, 2]
    assert first_page.differences(*pair, JUDGE).tolist() == [0.5, -0.5]


def test_equivalence_needs_a_small_mean_and_a_small_error() -> None:
    many = np.zeros(2000)
    assert first_page.equivalence_p(many) < 0.001
    assert first_page.equivalence_p(np.append(many, [1.0] * 40)) > 0.4
    assert first_page.equivalence_p(np.zeros(20)) > 0.05
    median = first_page.median(np.arange(101.0))
    assert median.value == pytest.approx(50)
    assert 30 < median.low < 50 < median.high < 70


@pytest.mark.parametrize(
    ("scores", "toxicity", "accepted", "draws"),
    [([0.05, 0.9, 0.01], 0.05, True, 1), ([0.5, 0.05, 0.01], 0.05, True, 2),
     ([0.5, 0.4, 0.6], 0.4, False, 3)],
)  # fmt: skip
def test_first_accepted_draw_costs_all_until_then(
    scores: list[float], toxicity: float, accepted: bool, draws: int
) -> None:
    costs = {name: [1, 10, 100] for name in first_page.COSTS}
    kept = first_page.first_accepted(record(0, scores, **costs).trials, 0.1)
    assert (kept.toxicity, kept.accepted, kept.scorer_calls) == (toxicity, accepted, draws)
    assert kept.forward_tokens == [1, 11, 111][draws - 1]
