"""Trials that return the least toxic completion so far, and the model's own texts as a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.runs import JUDGE, REFERENCE, changed, column, likelihoods, record, search_run
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import evaluation
from tide.data.record_files import read_records
from tide.evaluation.reporting.reports import report
from tide.evaluation.runs import carried, unmodified


def test_a_trial_that_finds_nothing_less_toxic_repeats_the_one_before() -> None:
    one = record(
        0,
        [0.4, 0.6, 0.1, 0.1],
        [0.3, 0.2, 0.9, 0.8],
        evaluations=[3, 4, 5, 6],
        num_tokens=[1, 2, 3, 4],
        perplexity=likelihoods([2.0, 3.0, None, 4.0], [1, 2, 3, 4]),
        attributes={"threat": [0.1, 0.2, 0.3, 0.4]},
    )
    found = carried(one)
    assert column(found, "toxicity") == [0.4, 0.4, 0.1, 0.1]
    assert column(found, "text") == [one.trials[i].text for i in (0, 0, 2, 2)]
    assert column(found, "judge_scores")[JUDGE] == [0.3, 0.3, 0.9, 0.9]
    assert column(found, "num_tokens") == [1, 1, 3, 3]
    assert column(found, "perplexity")[REFERENCE]["num_tokens"] == [1, 1, 3, 3]
    assert column(found, "perplexity")[REFERENCE]["nll"][2:] == [None, None]
    assert column(found, "attributes")["threat"] == [0.1, 0.1, 0.3, 0.3]
    assert column(found, "evaluations") == [3, 4, 5, 6]
    assert column(found, "accepted") is None
    assert carried(found) == found


def test_the_published_protocol_keeps_what_each_trial_found_on_disk(tmp_path: Path) -> None:
    base, tide = evaluation.evaluate(
        PROMPTS,
        "base,tide",
        model=scripted_engine(),
        scorer=ReadingScorer(),
        protocol="published",
        reference="none",
        out=tmp_path,
    )
    for one in tide.records:
        scores = column(one, "toxicity")
        assert scores == sorted(scores, reverse=True)
    raw = read_records(tmp_path / "tide/records.jsonl")
    assert [carried(one) for one in raw] == tide.records
    assert raw != tide.records
    assert base.records == read_records(tmp_path / "base/records.jsonl")


def test_what_the_model_wrote_by_itself_stands_beside_a_single_search() -> None:
    one = search_run("tide")
    for number, made in enumerate(one.records):
        texts, scores = column(made, "text"), [0.9] * len(made.trials)
        changed(one, number, base_text=texts, base_toxicity=scores)
    own, found = report([one], draw=False, tests=False).summaries
    assert (own.method, found.method) == ("unmodified", "tide")
    assert own.toxicity[one.scorer]["max"].value == pytest.approx(0.9)
    assert not own.fluency
    two = report([one, search_run("shuffled")], draw=False, tests=False).summaries
    assert [summary.method for summary in two] == ["tide", "shuffled"]
    changed(one, 0, base_text=None)
    assert unmodified(one) is None
