"""The authors' published runs: read, beside the printed numbers, and what they say.

The tests of claims read the authors' own files, for half a minute once.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction import paper
from tests.evaluation.runs import changed, record, run
from tests.reproduction.published import export, to_published
from tide.baselines import REGISTRY as BASELINES
from tide.evaluation import Run, judge, read_run, report
from tide.evaluation.significance import compare

MODELS = ["gemma-2-2b", "gpt2-large", "llama-3.1-8b", "qwen3-4b"]
Models = dict[str, list[Run]]


def by_name(table: tuple[list[str], list[Any]], at: int = 0) -> dict[str, list[Any]]:
    return {row[at]: row for row in table[1]}


# Of the code, on files made up.


def test_written_and_read_again(tmp_path: Path) -> None:
    first = run([[0.2, 0.9], [0.1, 0.3]], "base")
    for number in range(2):
        changed(first, number, iterations=[1, 3])
    (tmp_path / "recorded/m").mkdir(parents=True)
    export(first, tmp_path / "recorded/m/base.json.gz")
    ((again,),) = paper.imported(tmp_path / "recorded", tmp_path / "runs").values()
    assert again.name == "base"
    assert again.records[0].trials[0].judge_scores == {}
    (summary,) = report([again], tests=False, draw=False).summaries
    assert summary.toxicity["perspective"]["max"].value == pytest.approx(0.6)
    assert summary.averages["iterations"].value == 2.0
    # A recorded maximum is not believed, and ids that repeat give way to places.
    rows = [to_published(record(number, [0.2, 0.4])) for number in (0, 1, 0, 1)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps([row | {"max_toxicity": 0.99} for row in rows]))
    assert [(entry.id, entry.max_toxicity) for entry in paper.published(path)] == [
        (n, 0.4) for n in range(4)
    ]


def test_rows_of_the_printed_table() -> None:
    rows = ["Base model", "DExperts", "Toxification Reversal", "RAD (beta=75)", "SASA (beta=75)"]
    names = ["base", "dexperts", "toxificationreversal", "rad-aisteer-75", "sasa-75"]
    assert [paper.printed_row(name, rows) for name in names] == rows
    assert paper.printed_row("rad-aisteer-7", rows) is None
    assert paper.printed_row("rad-75", rows) is None  # the original code, which no table has
    assert paper.printed_row("tide", rows) is None


def test_the_printed_numbers_are_there() -> None:
    rows = paper.numbers("tables")
    assert Counter(row["benchmark"] for row in rows) == {"rtp": 60, "attaq": 60, "bold": 60}
    of_tide = paper.printed("rtp", "qwen3-4b")["tide"]
    assert of_tide == {
        "max": 0.144, "mean": 0.122, "rate": 0.003, "perplexity": 4.2, "iterations": 1.63,
    }  # fmt: skip
    assert "iterations" not in paper.printed("bold", "qwen3-4b")["RAD (beta=10)"]


def test_table_of_systems_names_the_registered_baselines() -> None:
    rows = {row["here"]: row for row in paper.numbers("systems")}
    assert {*BASELINES.names(), "tide", "resample", "not included"} == rows.keys()
    borrowed = {"dapt", "contrastive", "safe-decoding"}  # what these read another one learns
    for name in BASELINES.names():
        learns = rows[name]["learns"] != "nothing"
        assert learns == (BASELINES.load(name).learned or name in borrowed), name
    assert [row["system"] for row in rows.values() if row["gradients"] == "yes"] == ["PPLM"]


@pytest.fixture
def some(tmp_path: Path) -> Models:
    """The search finds 0.4 at once and then better; the other draws 0.9 and 0.1 by turns."""
    for name, toxicity in {
        "base": [[0.9, 0.9, 0.9]] * 12,
        "rad-aisteer-50": [[0.9, 0.1, 0.2 + n / 100] for n in range(12)],
        "rad-50": [[0.9, 0.9, 0.9]] * 12,
        "tide": [[0.6, 0.3, 0.1]] * 3 + [[0.4, 0.4, 0.1]] * 9,
    }.items():
        folder = tmp_path / "recorded/gemma-2-2b"
        folder.mkdir(parents=True, exist_ok=True)
        export(run(toxicity, "own"), folder / f"{name}.json")
    return paper.imported(tmp_path / "recorded", tmp_path / "runs")


def test_the_original_rad_stands_without_printed_numbers(some: Models) -> None:
    rows = by_name(paper.beside_printed("gemma-2-2b", some["gemma-2-2b"]))
    assert list(rows) == ["base", "rad-50", "rad-aisteer-50", "tide"]
    assert rows["rad-aisteer-50"][1:3] == [pytest.approx(0.9), 0.206]
    assert rows["rad-50"][1:4] == [pytest.approx(0.9), None, None]


@pytest.mark.nightly
def test_the_first_trial_of_tide_stands_beside_single_draws(some: Models) -> None:
    rows = by_name(paper.single_draws("gemma-2-2b", some["gemma-2-2b"]))
    # Printed perplexity, prompts with any of three, single completions, mean score.
    assert rows["tide"][1:4] == [4.57, 0.25, pytest.approx(3 / 36)]
    assert rows[paper.FIRST][1:] == [4.57, 0.25, 0.25, pytest.approx(0.45)]
    assert rows["rad-aisteer-50"][1:4] == [4.31, 1.0, pytest.approx(1 / 3)]
    # The model itself has a perplexity of 3.36, which is not like 4.57.
    alike = by_name(paper.like_for_like(some), at=1)
    assert list(alike) == [paper.FIRST, "rad-aisteer-50"]
    assert alike[paper.FIRST][3:] == [0.25, pytest.approx(0.45), None, None, None]
    first, rad = (of(some, "gemma-2-2b", name) for name in (paper.FIRST, "rad-aisteer-50"))
    less, more = paper.paired(first, rad, "perspective")
    # 0.9 is above what the search finds, 0.1 and what rises from 0.2 are below it.
    assert max(less[0], more[1]) < 0.01
    assert min(less[1], more[0]) > 0.99
    # Toxic: 3 of 12 and each first of three draws, so 1/4 - 1/3; 1.645 standard errors of 0.131.
    assert alike["rad-aisteer-50"][7] == paper.excess(first, rad, "perspective")
    assert paper.excess(first, rad, "perspective") == "-0.083, at most +0.131"
    assert alike["rad-aisteer-50"][5] == f"{min(less):.2g} to {max(less):.2g}"


@pytest.mark.nightly
def test_judges_and_references_are_added_by_tide_judge(some: Models, tmp_path: Path) -> None:
    judge(tmp_path / "runs", judges="lexicon", reference="pocket-reference")
    again = paper.imported(tmp_path / "recorded", tmp_path / "runs")["gemma-2-2b"]
    head, rows = paper.single_draws("gemma-2-2b", again)
    assert [name for name in head if name.startswith("any, lexicon")]
    assert len(rows[0]) == len(head)
    head, rows = paper.beside_printed("gemma-2-2b", again)
    assert head[-5:] == ["ppl by pocket-reference", "of 20", "paper", "diff", "median"]
    assert all(len(row) == len(head) for row in rows)
    assert rows[0][-5] > 1
    assert rows[0][-3] is None  # the paper prints none by this model
    assert read_run(tmp_path / "runs/gemma-2-2b/tide-first").config["num_trials"] == 1
    assert some


# Of the printed numbers alone.


def test_where_nothing_is_searched_the_gain_is_that_of_one_draw() -> None:
    """On BOLD K-bar is 1.00: TIDE's printed maximum is the printed mean of the model itself."""
    _, rows = paper.one_draw()
    assert len(rows) == 12
    for _, _, iterations, _, _, gain, _, of_one_draw, *_ in rows:
        if iterations == 1.0:
            assert gain < -0.005
            assert abs(of_one_draw) <= 0.001 + 1e-9


# Of the authors' records: each claim of docs/paper.md that they decide.


@pytest.fixture(scope="module")
def recorded(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return paper.imported(shared_data / "paper/recorded", tmp_path_factory.mktemp("runs"))


def of(recorded: Models, model: str, name: str) -> Run:
    return next(run for run in recorded[model] if run.name == name)


@pytest.mark.nightly
@pytest.mark.parametrize(("model", "count"), [*zip(MODELS, (14, 8, 14, 14), strict=True)])
def test_our_metrics_are_the_printed_ones(recorded: Models, model: str, count: int) -> None:
    """All rows of all models but one, whose records are those of another run than the printed."""
    head, rows = paper.beside_printed(model, recorded[model])
    assert head[3::3] == ["diff"] * 4
    printed_too = [row for row in rows if row[2] is not None]
    assert len(printed_too) == count
    for name, *cells in printed_too:
        other_run = (model, name) == ("llama-3.1-8b", "tide")
        for difference in cells[2 + 3 * other_run : 9 : 3]:
            assert abs(difference) <= 0.0064, name
        if name == "tide":
            assert (abs(cells[11]) <= 0.03) is not other_run


@pytest.mark.nightly
def test_tide_on_llama_is_another_run_than_the_printed(recorded: Models) -> None:
    row = by_name(paper.beside_printed("llama-3.1-8b", recorded["llama-3.1-8b"]))["tide"]
    assert [row[1], row[4]] == pytest.approx([0.213, 0.159], abs=5e-4)
    assert row[10] == pytest.approx(3.23, abs=5e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_a_trial_of_tide_begins_with_the_best_before(recorded: Models, model: str) -> None:
    """So the largest of three scores is the first, in every prompt."""
    run = of(recorded, model, "tide")
    toxicity = paper.scores(run, "perspective")
    assert toxicity.shape == (1199, 3)
    assert (np.diff(toxicity, axis=1) <= 0).all()
    pairs = [entry.trials[:2] for entry in run.records]
    assert 0.54 <= np.mean([first.text == second.text for first, second in pairs]) <= 0.61


@pytest.mark.nightly
def test_on_llama_rad_is_less_toxic_and_likelier(recorded: Models) -> None:
    """RAD at beta 50, beside the first trial of TIDE."""
    rows = by_name(paper.like_for_like({"llama-3.1-8b": recorded["llama-3.1-8b"]}), at=1)
    tide, rad = rows[paper.FIRST], rows["rad-aisteer-50"]
    assert (tide[2], rad[2]) == (5.21, 4.47)
    assert [tide[4], rad[4]] == pytest.approx([0.213, 0.185], abs=5e-4)
    assert rad[5] == "1 to 1"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "against", "low", "high"),
    [
        ("gemma-2-2b", "rad-aisteer-50", 5e-8, 7e-8),
        ("qwen3-4b", "rad-aisteer-10", 2e-62, 4e-62),
        ("llama-3.1-8b", "rad-aisteer-75", 0.99, 1.0),
        ("gpt2-large", "rad-aisteer-75", 0.96, 0.98),
    ],
)
def test_paired_tests_of_the_maximum_of_three(
    recorded: Models, model: str, against: str, low: float, high: float
) -> None:
    """TIDE as recorded, so its maximum is one draw and the other's that of three."""
    both = [of(recorded, model, name) for name in ("tide", against)]
    (p,) = [each.p_value for each in compare(both, against) if each.measure == "max"]
    assert low <= (p or 0) <= high


@pytest.mark.nightly
def test_paired_tests_of_one_draw(recorded: Models) -> None:
    """Each draw by itself: beside their mean, which varies less, the difference would be hidden."""

    def test(model: str, name: str) -> tuple[list[float], list[float]]:
        first, other = (of(recorded, model, each) for each in (paper.FIRST, name))
        return paper.paired(first, other, "perspective")

    less, more = test("gemma-2-2b", "rad-aisteer-50")
    assert 0.94 < min(less) < max(less) < 1
    assert 0.005 < min(more) < max(more) < 0.06
    assert max(test("qwen3-4b", "rad-aisteer-10")[0]) < 1e-8
