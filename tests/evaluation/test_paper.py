from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.evaluation.runs import changed, record, run
from tide.core.errors import InputError
from tide.evaluation.metrics import summarize
from tide.evaluation.paper import (
    judged_tables,
    paper_tables,
    printed_row,
    read_published,
    write_published,
)
from tide.evaluation.perplexity import Reference
from tide.evaluation.significance import compare
from tide.scorers import CallableScorer


@pytest.fixture(scope="module")
def paper(shared_data: Path) -> Path:
    return shared_data / "paper"


def test_our_metrics_are_the_printed_ones(paper: Path) -> None:
    *by_model, iterations = paper_tables(paper)
    known = [table for table in by_model if table.title.endswith(("gpt2-large", "qwen3-4b"))]
    rows = [row for table in known for row in table.rows]
    assert len(rows) >= 13
    for row in rows:
        for ours, printed, difference in (row[1:4], row[4:7], row[7:10]):
            assert isinstance(ours, float)
            assert abs(ours - float(printed)) < 0.007, row[0]
            assert difference == ours - float(printed)
    differences = {
        model: abs(ours - float(printed)) for model, _, ours, printed, _ in iterations.rows
    }
    assert {"gpt2-large", "qwen3-4b"} <= differences.keys()
    # Of one model, the records are those of another run than the printed ones.
    assert [model for model, by in differences.items() if by >= 0.05] == ["llama-3.1-8b"]


def test_all_recorded_files_pair_prompt_by_prompt(paper: Path) -> None:
    runs = [read_published(path) for path in sorted((paper / "recorded/gpt2-large").iterdir())]
    assert {one.pairs for one in compare(runs)} == {1199}


def test_rows_of_the_printed_table() -> None:
    rows = dict.fromkeys(
        ["Base model", "DExperts", "Toxification Reversal", "RAD (beta=75)", "SASA (beta=75)"]
    )
    names = ["base", "dexperts", "toxificationreversal", "rad-aisteer-75", "sasa-75"]
    assert [printed_row(name, rows) for name in names] == list(rows)
    assert printed_row("rad-aisteer-7", rows) is None
    assert printed_row("tide", rows) is None


@pytest.mark.parametrize("name", ["tide.json", "tide.json.gz"])
def test_written_and_read_again(tmp_path: Path, name: str) -> None:
    first = run([[0.2, 0.9], [0.1, 0.3]], "tide")
    for number in range(2):
        changed(first, number, num_iter_steps=[1, 3])
    write_published(first, tmp_path / name)
    again = read_published(tmp_path / name)
    assert again.name == "tide"
    assert json.loads(again.records[0].to_json())["max_toxicity"] == 0.9
    assert again.records[0].judge_scores == {}
    ours, theirs = summarize(again), summarize(first)
    assert ours.toxicity["perspective"] == theirs.toxicity["scorer@1"]
    assert ours.averages["iterations"].value == 2.0


def test_a_recorded_maximum_is_not_believed(tmp_path: Path) -> None:
    both = [0.2, 0.4], [0.1, 0.2]
    rows = [json.loads(record(i, scores).to_json()) for i, scores in enumerate(both)]
    rows[0]["max_toxicity"] = 0.99
    (tmp_path / "x.json").write_text(json.dumps(rows))
    found = summarize(read_published(tmp_path / "x.json")).toxicity["perspective"]
    assert found["max"].value == pytest.approx(0.3)


def test_ids_that_repeat_give_way_to_places(tmp_path: Path) -> None:
    rows = [json.loads(record(number, [0.1]).to_json()) for number in (0, 1, 0, 1)]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    assert [row.id for row in read_published(tmp_path / "x.json").records] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("{}", "not a list of objects"),
        ("[]", "holds no records"),
        ('[{"prompt": "x"}]', "entry 1: not a record of a run: no id"),
        ('[{"id": 1, "prompt": "x", "completions": []}]', "entry 1: not a record"),
        (
            '[{"id": 1, "prompt": "x", "completions": ["a"], "toxicity_scores": [NaN]}]',
            "toxicity_scores.0: ",
        ),
        (
            '[{"id": 1, "prompt": "x", "completions": ["a"], "toxicity_scores": [0.1, 0.2]}]',
            "toxicity_scores has not one entry a trial",
        ),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        read_published(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    whole = gzip.compress(b'[{"id": 1}]' * 100)
    (tmp_path / "cut.json.gz").write_bytes(whole[:-9])
    with pytest.raises(InputError, match="cannot be read"):
        read_published(tmp_path / "cut.json.gz")


def test_a_folder_that_is_not_the_papers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tables\.json: no such file"):
        paper_tables(tmp_path)
    (tmp_path / "tables.json").write_text("{}")
    with pytest.raises(InputError, match=r"tables\.json: not the paper's tables"):
        paper_tables(tmp_path)
    (tmp_path / "tables.json").write_text('{"rtp": {"m": {}}}')
    with pytest.raises(InputError, match="no files"):
        paper_tables(tmp_path)
    (tmp_path / "recorded/m").mkdir(parents=True)
    write_published(run([[0.1]]), tmp_path / "recorded/m/own.json")
    with pytest.raises(InputError, match="has no row for it"):
        paper_tables(tmp_path)


def test_recorded_completions_are_judged_again(tmp_path: Path) -> None:
    """By how many letters they have; the recorded scores stay beside it."""
    (tmp_path / "recorded/m").mkdir(parents=True)
    write_published(run([[0.1, 0.9], [0.2, 0.3]]), tmp_path / "recorded/m/own.json")
    longest = max(len(t) for r in run([[0.1, 0.9], [0.2, 0.3]]).records for t in r.completions)
    judge = CallableScorer(lambda texts: [float(len(text) == longest) for text in texts])
    reference = Reference("pocket")
    (table,) = judged_tables(tmp_path, [judge], [reference])
    assert [column.heading for column in table.columns] == [
        *("method", "rate", "mean", "rate 1", "mean 1", "ppl"),
    ]
    ((name, recorded, mean, rate, judged_mean, perplexity),) = table.rows
    assert (name, getattr(recorded, "value", None)) == ("own", 0.5)
    assert getattr(mean, "value", None) == pytest.approx((0.5 + 0.25) / 2)
    assert (getattr(rate, "value", None), getattr(judged_mean, "value", None)) == (1.0, 1.0)
    assert isinstance(perplexity, float)
    with pytest.raises(InputError, match="no files"):
        judged_tables(tmp_path / "recorded", [judge])
