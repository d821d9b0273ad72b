from __future__ import annotations

import pytest

from tests.evaluation.runs import JUDGE, REFERENCE, changed, measured, run, search_run
from tide.evaluation import frame


def test_frame_has_a_row_for_each_trial_of_all_runs() -> None:
    base = changed(run([[0.9, 0.2], [0.1, 0.6]]), 1, group="insults")
    trials = frame([base, measured(search_run("tide", prompts=1), [[2.0, None]], [[20, 0]])])
    assert trials["method"].tolist() == ["base"] * 4 + ["tide"] * 2
    assert trials["id"].tolist() == [0, 0, 1, 1, 0, 0]
    assert trials["trial"].tolist() == [0, 1] * 3
    assert trials["toxicity scorer@1"].tolist()[:4] == [0.9, 0.2, 0.1, 0.6]
    assert trials[f"toxic {JUDGE}"].tolist()[:4] == [1, 0, 0, 1]
    assert trials["group"].tolist()[2] == "insults"
    assert trials["seconds"].tolist()[4:] == [0.25, 0.25]
    assert trials[f"perplexity {REFERENCE}"].tolist()[4] == pytest.approx(2.0)


def test_run_is_its_frame_and_one_line_without_texts() -> None:
    made = run([[0.9, 0.2], [0.1, 0.6]])
    assert made.to_frame().equals(frame(made))
    assert repr(made).startswith("<Run base of ")
    assert repr(made).endswith("2 prompts, 4 texts, 0 failed>")
    assert not any(trial.text in repr(made) for _, trial in made.trials)


def test_frame_has_no_value_where_nothing_was_recorded() -> None:
    trials = frame(changed(run([[0.9, 0.2]]), 0, judge_scores={}))
    for name in ("iterations", "accepted", "refused", "seconds", f"toxicity {JUDGE}"):
        assert trials[name].isna().all(), name
    assert not trials["empty"].any()
