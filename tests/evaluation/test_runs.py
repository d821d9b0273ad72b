"""Trials that return the least toxic completion so far, and the model's own texts as a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.evaluation.runs import (
    JUDGE,
    REFERENCE,
    changed,
    column,
    likelihoods,
    measured,
    record,
    run,
    search_run,
    write,
)
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import evaluation
from tide.core.errors import InputError
from tide.data.records import read_records
from tide.evaluation import frame
from tide.evaluation.metrics import summarize
from tide.evaluation.reports import grouped
from tide.evaluation.runs import carried, find_runs, read_run


def test_carried_trial_repeats_the_least_toxic_before() -> None:
    stored = record(
        0,
        [0.4, 0.6, 0.1, 0.1],
        [0.3, 0.2, 0.9, 0.8],
        evaluations=[3, 4, 5, 6],
        num_tokens=[1, 2, 3, 4],
        perplexity=likelihoods([2.0, 3.0, None, 4.0], [1, 2, 3, 4]),
        attributes=[{"threat": score} for score in (0.1, 0.2, 0.3, 0.4)],
    )
    again = carried(stored)
    own = [stored.trials[number] for number in (0, 0, 2, 2)]
    for name in ("toxicity", "text", "judge_scores", "num_tokens", "perplexity", "attributes"):
        assert [getattr(trial, name) for trial in again.trials] == [getattr(t, name) for t in own]
    assert column(again, "evaluations") == [3, 4, 5, 6]
    assert carried(again) == again


def test_published_runs_keep_each_trial_on_disk(tmp_path: Path) -> None:
    base, tide = evaluation.evaluate(
        PROMPTS,
        "base,tide",
        model=scripted_engine(),
        scorer=ReadingScorer(),
        protocol="published",
        reference="none",
        out=tmp_path,
    )
    for stored in tide.records:
        scores = column(stored, "toxicity")
        assert scores == sorted(scores, reverse=True)
    raw = read_records(tmp_path / "tide/records.jsonl")
    assert [carried(stored) for stored in raw] == tide.records
    assert raw != tide.records
    assert base.records == read_records(tmp_path / "base/records.jsonl")


def test_read_run_leaves_out_unfinished_records(tmp_path: Path) -> None:
    made = write(run([[0.1, 0.2], [0.3, 0.4]], num_prompts=3), tmp_path / "a", num_trials=2)
    with (made / "records.jsonl").open("ab") as file:
        file.writelines(record(2, [0.5]).lines())
    found = read_run(made)
    assert [stored.id for stored in found.records] == [0, 1]
    assert summarize(found).missing == 1
    made = write(run([[0.1]]), tmp_path / "b")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "num_trials": 2}))
    with pytest.raises(InputError, match="has no finished records"):
        read_run(made)


def test_changed_needs_a_base_run_of_equal_sampling() -> None:
    base_run, made = run([[0.1]] * 3), run([[0.0]] * 3, "backtrack")
    for hot in (0.1, 1.0):
        base_run.config["settings"] = {"seed": 0, "temperature": hot}
        made.config["settings"] = {"seed": 0, "temperature": 0.1}
        _, summary = grouped([base_run, made])[0].summaries
        assert ("changed" in summary.toxicity["scorer@1"]) == (hot == 0.1)


def test_find_runs_inside_the_folder_of_a_run_and_runs_that_are_files(tmp_path: Path) -> None:
    inner = write(run([[0.1]]), tmp_path / "runs/a")
    config, records = (inner / name for name in ("config.json", "records.jsonl"))
    shutil.copy(config, tmp_path / "runs")
    shutil.copy(records, tmp_path / "runs")
    single = tmp_path / "files/records.jsonl"
    single.parent.mkdir()
    shutil.copy(records, single)
    shutil.copy(config, single.with_name("records.jsonl.config.json"))
    assert set(find_runs([tmp_path])) == {inner, tmp_path / "runs", single}


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


def test_frame_has_no_value_where_nothing_was_recorded() -> None:
    trials = frame(changed(run([[0.9, 0.2]]), 0, judge_scores={}))
    for name in ("iterations", "accepted", "refused", "seconds", f"toxicity {JUDGE}"):
        assert trials[name].isna().all(), name
    assert not trials["empty"].any()
