"""One draw of TIDE against one draw of the other systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.runs import changed, run
from tide.core.errors import InputError
from tide.data.records import Likelihood
from tide.evaluation.like_for_like import clean_table, judged_tables, paper_tests
from tide.evaluation.metrics import Estimate
from tide.evaluation.paper import Recorded, recorded_runs
from tide.evaluation.printed import tables
from tide.evaluation.reporting.tables import Value
from tide.evaluation.runs import first_trial

MODEL = "gemma-2-2b"


@pytest.fixture(scope="module")
def published(shared_data: Path) -> list[Recorded]:
    return recorded_runs(shared_data / "paper")


def recorded(method: str, row: str | None, scores: list[list[float]]) -> Recorded:
    return Recorded(MODEL, run(scores, method, judges=[]), row)


# The search finds 0.4 at once and then better; the other draws 0.9 and 0.1 by turns.
SOME = [
    recorded("base", "Base model", [[0.9, 0.9, 0.9]] * 12),
    recorded("rad-aisteer-50", "RAD (beta=50)", [[0.9, 0.1, 0.2 + n / 100] for n in range(12)]),
    recorded("tide", "tide", [[0.6, 0.3, 0.1]] * 3 + [[0.4, 0.4, 0.1]] * 9),
]


def values(row: list[Value] | tuple[Value, ...]) -> list[float | str | None]:
    return [cell.value if isinstance(cell, Estimate) else cell for cell in row]


def test_the_first_trial_of_tide_stands_beside_single_draws() -> None:
    judged, alike = judged_tables(SOME)
    rows = {row[0]: values(list(row)) for row in judged.rows}
    assert list(rows) == ["Base model", "RAD (beta=50)", "tide", "tide, first trial"]
    # Printed perplexity, prompts with any of three, single completions, mean score.
    assert rows["tide"][1:4] == [4.57, 0.25, pytest.approx(3 / 36)]
    assert rows["tide, first trial"][1:] == [4.57, 0.25, 0.25, pytest.approx(0.45)]
    assert rows["RAD (beta=50)"][1:4] == [4.31, 1.0, pytest.approx(1 / 3)]
    assert "begins with the best of those before" in " ".join(judged.notes)
    # The model itself has a perplexity of 3.36, which is not like 4.57.
    assert [row[1] for row in alike.rows] == ["tide, first trial", "RAD (beta=50)"]
    (search, other) = (values(list(row)) for row in alike.rows)
    assert search[3:] == [0.25, pytest.approx(0.45), None]
    assert other[3] == pytest.approx(1 / 3)
    assert isinstance(other[5], float)
    assert 0 < other[5] < 1


def test_tests_are_against_a_file_a_row_or_the_first_trial() -> None:
    (by_file,) = paper_tests(SOME, "rad-aisteer-50")
    (by_row,) = paper_tests(SOME, "RAD (beta=50)")
    assert by_file == by_row
    assert [row[0] for row in by_row.rows] == ["Base model", "tide", "tide, first trial"]
    search = by_row.rows[1]
    assert search[1:3] == [12, pytest.approx(0.45 - 0.9)]
    assert isinstance(search[4], float)
    assert search[4] < 0.01
    (first,) = paper_tests(SOME, "tide, first trial")
    assert [row[0] for row in first.rows] == ["Base model", "RAD (beta=50)", "tide"]
    with pytest.raises(InputError, match="--against: no recorded run 'rad-7'; there are base, rad"):
        list(paper_tests(SOME, "rad-7"))


def test_models_without_the_row_are_left_out() -> None:
    other = Recorded("qwen3-4b", run([[0.1]], "base", judges=[]), "Base model")
    (table,) = paper_tests([*SOME, other], "rad-aisteer-50")
    assert MODEL in table.title


def test_where_nothing_is_searched_the_gain_is_that_of_one_draw() -> None:
    """On BOLD K-bar is 1.00: TIDE's printed maximum is the printed mean of the model itself."""
    table = clean_table()
    assert len(table.rows) == 12
    for benchmark, model, iterations, _, search, gain, mean, one_draw, *_ in table.rows:
        printed = tables()[str(benchmark)][str(model)]
        assert (search, mean) == (printed["tide"].max, printed["Base model"].mean)
        if isinstance(iterations, float) and iterations == 1.0:
            assert isinstance(gain, float)
            assert isinstance(one_draw, float)
            assert gain < -0.005
            assert abs(one_draw) <= 0.001 + 1e-9


def test_single_draws_of_rad_are_printed_below_tide_where_nothing_is_searched() -> None:
    """On BOLD even those at beta 10, at the perplexity of the model itself."""
    table = clean_table()
    places = {column.key or column.heading: i for i, column in enumerate(table.columns)}
    for row in table.rows:
        at = {name: row[place] for name, place in places.items()}
        search, own = at["tide max"], at["base ppl"]
        assert isinstance(search, float)
        assert isinstance(own, float)
        if at["benchmark"] != "rtp":
            assert values([at["RAD 50 mean"]])[0] < search
        if at["benchmark"] == "bold":
            weak, perplexity = values([at["RAD 10 mean"], at["RAD 10 ppl"]])
            assert weak < search
            assert abs(perplexity / own - 1) < 0.012


def test_a_first_trial_keeps_what_belongs_to_it() -> None:
    whole = run([[0.2, 0.9], [0.4, 0.1]])
    measured = {"m": {"nll": [1.0, 2.0], "num_tokens": [20, 3]}}
    changed(whole, 0, perplexity=measured, num_iter_steps=[3, 1])
    alone = first_trial(whole)
    assert alone.config["num_trials"] == 1
    (one,) = alone.records[0].trials
    assert (one.number, one.toxicity, one.iterations) == (0, 0.2, 3)
    assert one.perplexity["m"] == Likelihood(nll=1.0, num_tokens=20)
    assert one.judge_scores == {"judge@1": 0.2}
    assert len(whole.records[0].trials) == 2


@pytest.mark.slow  # all that was recorded is read
def test_what_the_records_say(published: list[Recorded]) -> None:
    """On Llama, RAD at beta 50 is less toxic than TIDE's first trial, and printed as likelier."""
    some = [one for one in published if one.model == "llama-3.1-8b"]
    *_, alike = judged_tables(some)
    rows = {row[1]: row for row in alike.rows}
    (tide, rad) = (values(list(rows[name])) for name in ("tide, first trial", "RAD (beta=50)"))
    assert (tide[2], rad[2]) == (5.21, 4.47)
    assert tide[4] == pytest.approx(0.213, abs=5e-4)
    assert rad[4] == pytest.approx(0.185, abs=5e-4)
    assert rad[5] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "against", "low", "high"),
    [
        (MODEL, "rad-aisteer-50", 5e-8, 7e-8),
        ("qwen3-4b", "rad-aisteer-10", 2e-62, 4e-62),
        ("llama-3.1-8b", "rad-aisteer-75", 0.99, 1.0),
        ("gpt2-large", "rad-aisteer-75", 0.96, 0.98),
    ],
)
def test_paired_tests_of_the_maximum_of_three(
    published: list[Recorded], model: str, against: str, low: float, high: float
) -> None:
    """TIDE as recorded, so its maximum is one draw and the other's that of three."""
    some = [one for one in published if one.model == model]
    (table,) = paper_tests(some, against)
    (p,) = (row[4] for row in table.rows if row[0] == "tide")
    assert isinstance(p, float)
    assert low <= p <= high
