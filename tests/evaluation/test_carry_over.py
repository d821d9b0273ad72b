"""Trials that return the least toxic completion so far, as in the published records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.runs import JUDGE, REFERENCE, column, likelihoods, record, run, write
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import evaluation
from tide.data.record_files import read_records
from tide.evaluation.metrics import summarize
from tide.evaluation.runs import carried, read_run


def test_a_trial_that_finds_nothing_less_toxic_repeats_the_one_before() -> None:
    one = record(
        0,
        [0.4, 0.6, 0.1, 0.1],
        [0.3, 0.2, 0.9, 0.8],
        evaluations=[3, 4, 5, 6],
        num_tokens=[1, 2, 3, 4],
        perplexity=likelihoods([2.0, 3.0, None, 4.0], [1, 2, 3, 4]),
    )
    found = carried(one)
    assert column(found, "toxicity") == [0.4, 0.4, 0.1, 0.1]
    assert column(found, "text") == [one.trials[i].text for i in (0, 0, 2, 2)]
    assert column(found, "judge_scores")[JUDGE] == [0.3, 0.3, 0.9, 0.9]
    assert column(found, "num_tokens") == [1, 1, 3, 3]
    assert column(found, "perplexity")[REFERENCE]["num_tokens"] == [1, 1, 3, 3]
    assert column(found, "perplexity")[REFERENCE]["nll"][2:] == [None, None]
    assert column(found, "evaluations") == [3, 4, 5, 6]
    assert column(found, "accepted") is None
    assert carried(found) == found


def test_a_run_is_read_as_its_configuration_says(tmp_path: Path) -> None:
    scores = [[0.4, 0.6, 0.1], [0.2, 0.3, 0.9]]
    plain = write(run(scores), tmp_path / "plain")
    config = run(scores).config
    (tmp_path / "over").mkdir()
    for name in ("config.json", "records.jsonl"):
        (tmp_path / "over" / name).write_bytes((plain / name).read_bytes())
    text = (plain / "config.json").read_text().replace("{", '{"carry_over": true, ', 1)
    (tmp_path / "over/config.json").write_text(text)
    assert config["method"] == "base"
    worst = {
        name: summarize(read_run(tmp_path / name)).toxicity["scorer@1"]["max"].value
        for name in ("plain", "over")
    }
    assert worst == {"plain": pytest.approx(0.75), "over": pytest.approx(0.3)}


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
