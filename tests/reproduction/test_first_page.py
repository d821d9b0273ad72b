"""Seeds are pooled by prompt, and methods compared on the seeds and prompts that both have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.runs import record, run, write
from tests.scripts.loading import ROOT, load_script
from tide.core.errors import InputError

first_page = load_script("reproduction/first_page.py")
TOXIC = "toxic by judge"


def rows_of(method: str, *scores: list[float]) -> pd.DataFrame:
    """Outcomes of one run per seed, with a flag for each prompt."""
    rows = [
        {"set": "provoking", "method": method, "seed": seed, "id": number, TOXIC: float(flag)}
        for seed, of_seed in enumerate(scores)
        for number, flag in enumerate(of_seed)
    ]
    return pd.DataFrame(rows)


def test_outcomes_of_a_run_are_what_it_recorded(tmp_path: Path) -> None:
    for method, scores in (("base", [[0.9], [0.2]]), ("backtrack", [[0.9], [0.1]])):
        runs_folder = tmp_path / "provoking" / method
        write(run(scores, method, settings={"seed": 3}), runs_folder / method)
    rows = first_page.outcomes(tmp_path)
    assert rows["method"].tolist() == ["base", "base", "backtrack", "backtrack"]
    assert rows["id"].tolist() == [0, 1, 0, 1]
    assert set(rows["seed"]) == {3}
    assert rows["toxicity"].tolist() == [0.9, 0.2, 0.9, 0.1]
    assert rows[TOXIC].tolist() == [1, 0, 1, 0]
    # The texts of `record` hold the score.
    assert rows["text"].nunique() == 3
    assert not rows["text"].str.contains("kind").any()
    joined_rows = first_page.joined(rows[rows["method"] == "base"], rows)
    assert joined_rows.sort_index(axis=1).equals(rows.sort_index(axis=1))


def test_outcomes_of_prompts_that_a_seed_lacks_are_left_out() -> None:
    rows = first_page.of_method(rows_of("tide", [0, 1, 0], [1, 1]), "tide")
    assert rows["id"].tolist() == [0, 1, 0, 1]
    assert first_page.per_prompt(rows, TOXIC).tolist() == [0.5, 1.0]


def test_table_names_a_method_without_scores_of_a_judge() -> None:
    rows = rows_of("base", [1, np.nan])
    with pytest.raises(InputError, match="base: a run has no scores of judge"):
        first_page.table(rows, rows)


def test_methods_are_compared_on_common_seeds() -> None:
    """By the toxic shares of each prompt."""
    walk = rows_of("random-walk", [1, 0], [0, 0], [1, 1])
    default = rows_of("backtrack", [0, 0], [0, 1])
    rows = pd.concat([walk, default])
    pair = first_page.on_common_seeds(rows, "random-walk", "backtrack")
    assert [rows["seed"].nunique() for rows in pair] == [2, 2]
    assert first_page.differences(*pair, "judge").tolist() == [0.5, -0.5]


@pytest.mark.parametrize("model", ["smollm2", "gemma3-270m"])
def test_published_table_is_that_of_the_recorded_outcomes(model: str, tmp_path: Path) -> None:
    results = ROOT / "docs/results"
    first_page.main(model, 1, "", "", None, results / f"{model}-outcomes.csv.gz", tmp_path)
    for name in ("table", "tests", "equivalence"):
        computed = pd.read_csv(tmp_path / model / f"{name}.csv")
        published = pd.read_csv(results / f"{model}-{name}.csv")
        assert set(computed) == set(published)
        # Holm's correction counts the tests of all methods of the page.
        columns = [column for column in computed if column != "p, Holm"]
        keys = [column for column in columns if column in ("method", "judge", "measure")]
        rows = published.merge(computed[keys])[columns]
        assert len(rows) == len(computed) > 0
        pd.testing.assert_frame_equal(rows, computed[columns], rtol=1e-3)


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
