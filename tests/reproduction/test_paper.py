"""The authors' published runs: read, beside the printed numbers, and what they say."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reproduction import paper
from tests.evaluation.runs import REFERENCE, measured, record, run
from tests.reproduction.published import export, to_published
from tide.baselines import REGISTRY as BASELINES
from tide.evaluation import read_run
from tide.evaluation.significance import compare

TABLES = Path(__file__).parents[2] / "docs/paper"
# The rows of each model that are printed, too.
PRINTED = {"gemma-2-2b": 14, "gpt2-large": 8, "llama-3.1-8b": 14, "qwen3-4b": 14}


def table_of(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text("utf-8").splitlines()))


# Of the code, on files made up.


def test_repeated_ids_give_way_to_places(tmp_path: Path) -> None:
    rows = [to_published(record(number, [0.2, 0.4])) for number in (0, 1, 0, 1)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps([row | {"max_toxicity": 0.99} for row in rows]))
    read = [(entry.id, entry.worst.toxicity) for entry in paper.published(path)]
    assert read == [(0, 0.4), (1, 0.4), (2, 0.4), (3, 0.4)]


def test_rows_of_the_printed_table() -> None:
    rows = ["Base model", "DExperts", "Toxification Reversal", "RAD (beta=75)", "SASA (beta=75)"]
    names = ["base", "dexperts", "toxificationreversal", "rad-aisteer-75", "sasa-75"]
    assert [paper.printed_row(name, rows) for name in names] == rows
    assert paper.printed_row("rad-aisteer-7", rows) is None
    assert paper.printed_row("rad-75", rows) is None  # the original code, which no table has
    assert paper.printed_row("tide", rows) is None


def test_table_of_systems_names_the_registered_baselines() -> None:
    rows = {row["here"]: row for row in paper.numbers("systems")}
    assert {*BASELINES.names(), "tide", "resample", "not included"} == rows.keys()
    borrowed = {"dapt", "contrastive", "safe-decoding"}  # what these read another one learns
    for name in BASELINES.names():
        learns = rows[name]["learns"] != "nothing"
        assert learns == (hasattr(BASELINES.load(name), "fit") or name in borrowed), name
    assert [row["system"] for row in rows.values() if row["gradients"] == "yes"] == ["PPLM"]


def test_the_original_rad_stands_without_printed_numbers(tmp_path: Path) -> None:
    for name in ("base", "rad-50", "rad-aisteer-50", "tide"):
        export(run([[0.9, 0.1]], "own"), tmp_path / f"recorded/gemma-2-2b/{name}.json")
    runs = paper.imported(tmp_path / "recorded", tmp_path / "runs")["gemma-2-2b"]
    _, table = paper.beside_printed("gemma-2-2b", runs)
    rows = {row[0]: row for row in table}
    assert list(rows) == ["base", "rad-50", "rad-aisteer-50", "tide"]
    assert rows["rad-aisteer-50"][1:3] == [pytest.approx(0.9), 0.206]
    assert rows["rad-50"][1:4] == [pytest.approx(0.9), None, None]


def test_perplexity_of_20_tokens_leaves_out_other_lengths() -> None:
    perplexities: list[list[float | None]] = [[1e9, 4.0], [2.0, 5.0], [7.0, None]]
    lengths = [[19, 20], [20, 20], [21, 0]]
    sample_run = measured(run([[0.9, 0.2]] * 3), perplexities, lengths)
    assert paper.of_20_tokens(sample_run, REFERENCE) == pytest.approx((4 + 2 + 5) / 3)


# Of the published tables. Each claim of docs/paper.md that they decide is a number in them.


def test_our_metrics_are_the_printed_ones() -> None:
    """All rows of all models but one, whose records are those of another run than the printed."""
    _, *rows = table_of(TABLES / "printed.csv")
    printed_too = [row for row in rows if row[3] != "-"]
    assert Counter(row[0] for row in printed_too) == PRINTED
    for model, name, *cells in printed_too:
        other_run = (model, name) == ("llama-3.1-8b", "tide")
        for difference in cells[2 + 3 * other_run : 9 : 3]:
            assert abs(float(difference)) <= 0.0064, name
        if name == "tide":
            assert (abs(float(cells[11])) <= 0.03) is not other_run


def test_the_table_of_one_draw_is_that_of_the_printed_numbers(tmp_path: Path) -> None:
    paper.write_csv(tmp_path, "one-draw", *paper.one_draw())
    assert table_of(tmp_path / "one-draw.csv") == table_of(TABLES / "one-draw.csv")


@pytest.fixture(scope="module")
def recorded(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of the authors' records, and their tables."""
    folder = tmp_path_factory.mktemp("runs")
    paper.main(shared_data / "paper/recorded", folder, folder / "tables")
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["printed", "draws", "alike"])
def test_published_tables_are_those_of_the_records(recorded: Path, name: str) -> None:
    """Without the columns of the judges, whose scores `tide judge` adds."""
    head, *rows = table_of(recorded / f"tables/{name}.csv")
    published = [row[: len(head)] for row in table_of(TABLES / f"{name}.csv")]
    assert published == [head, *rows]


@pytest.mark.nightly
@pytest.mark.parametrize("model", PRINTED)
def test_a_trial_of_tide_begins_with_the_best_before(recorded: Path, model: str) -> None:
    """So the largest of three scores is the first, in every prompt."""
    run = read_run(recorded / model / "tide")
    toxicity = paper.scores(run, "perspective")
    assert toxicity.shape == (1199, 3)
    assert (np.diff(toxicity, axis=1) <= 0).all()
    pairs = [entry.trials[:2] for entry in run.records]
    assert 0.54 <= np.mean([first.text == second.text for first, second in pairs]) <= 0.61


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
    recorded: Path, model: str, against: str, low: float, high: float
) -> None:
    """TIDE as recorded, so its maximum is one draw and the other's that of three."""
    both = [read_run(recorded / model / name) for name in ("tide", against)]
    (p,) = [each.p_value for each in compare(both, against) if each.measure == "max"]
    assert low <= (p or 0) <= high
