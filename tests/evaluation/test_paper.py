from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest

from tests.evaluation.runs import changed, record, run
from tide.core.errors import InputError
from tide.data.records import Record
from tide.evaluation import paper
from tide.evaluation.metrics import summarize
from tide.evaluation.paper import (
    Recorded,
    judged_runs,
    measured_runs,
    paper_tables,
    read_published,
    recorded_runs,
    write_published,
)
from tide.evaluation.paper_report import further_tables
from tide.evaluation.perplexity import Fluency
from tide.evaluation.printed import Printed, further, printed_row, rows_of, tables
from tide.evaluation.reporting.tables import Value
from tide.evaluation.runs import first_trial
from tide.evaluation.significance import compare
from tide.scorers import CallableScorer

MODELS = ["gemma-2-2b", "gpt2-large", "llama-3.1-8b", "qwen3-4b"]


@pytest.fixture(scope="module")
def recorded(shared_data: Path) -> list[Recorded]:
    return recorded_runs(shared_data / "paper")


def far(difference: Value, most: float) -> bool:
    assert isinstance(difference, float)
    return abs(difference) > most


@pytest.mark.slow  # all that was recorded is read, for a quarter of a minute
def test_our_metrics_are_the_printed_ones(recorded: list[Recorded]) -> None:
    """All rows of all models but one, whose records are those of another run than the printed."""
    *by_model, iterations = paper_tables(recorded)
    assert [table.name for table in by_model] == [f"paper-{model}" for model in MODELS]
    differing, rows = set(), 0
    for model, table in zip(MODELS, by_model, strict=True):
        for name, *cells in table.rows:
            if cells[1] is None:
                assert str(name).startswith("rad-")
                continue
            rows += 1
            for metric, difference in zip(("max", "mean", "rate"), cells[2::3], strict=True):
                if far(difference, 0.0064):
                    differing.add((model, name, metric))
    assert rows == 50
    assert differing == {("llama-3.1-8b", "tide", "max")}
    assert [row[0] for row in iterations.rows if far(row[-1], 0.03)] == ["llama-3.1-8b"]
    (llama,) = (one for one in recorded if (one.model, one.row) == ("llama-3.1-8b", "tide"))
    found = summarize(llama.run)
    ours = [found.toxicity["perspective"][name].value for name in ("max", "mean")]
    assert ours == pytest.approx([0.213, 0.159], abs=5e-4)
    assert found.averages["iterations"].value == pytest.approx(3.23, abs=5e-3)


@pytest.mark.slow
def test_a_trial_of_the_records_of_tide_begins_with_the_best_before(
    recorded: list[Recorded],
) -> None:
    """So the largest of three scores is the first, in every prompt of every model."""
    searches = [one for one in recorded if one.row == "tide"]
    assert [one.model for one in searches] == MODELS
    for one in searches:
        scores = [[trial.toxicity for trial in record.trials] for record in one.run.records]
        assert all(some == sorted(some, reverse=True) for some in scores)
        alone, whole = (summarize(some) for some in (first_trial(one.run), one.run))
        assert (alone.completions, whole.completions) == (1199, 3597)
        assert alone.toxicity["perspective"]["max"] == whole.toxicity["perspective"]["max"]
        pairs = [record.trials[:2] for record in one.run.records]
        repeats = sum(first.text == second.text for first, second in pairs) / 1199
        assert 0.54 <= repeats <= 0.61


@pytest.mark.slow
def test_all_recorded_files_pair_prompt_by_prompt(recorded: list[Recorded]) -> None:
    for model in MODELS:
        runs = [one.run for one in recorded if one.model == model]
        assert {one.pairs for one in compare(runs)} == {1199}


def test_the_printed_numbers_are_there() -> None:
    assert {name: sum(map(len, models.values())) for name, models in tables().items()} == {
        **{"rtp": 60, "attaq": 60, "bold": 60}
    }
    assert tables()["rtp"]["qwen3-4b"]["tide"] == Printed(0.144, 0.122, 0.003, 4.2, 1.63)
    assert tables()["bold"]["qwen3-4b"]["RAD (beta=10)"].iterations is None
    assert further("Qwen3-14B")["qwen3-4b", "Base model", "perplexity"] == 4.09
    assert further("temperature 1.0")["gpt2-large", "tide", "iterations"] == 2.22


def test_every_further_number_is_in_a_table() -> None:
    cells = [cell for table in further_tables() for row in table.rows for cell in row[2:]]
    shown = sorted(cell for cell in cells if isinstance(cell, float))
    assert shown == sorted(float(row["value"]) for row in rows_of("further"))


def test_rows_of_the_printed_table() -> None:
    rows = ["Base model", "DExperts", "Toxification Reversal", "RAD (beta=75)", "SASA (beta=75)"]
    names = ["base", "dexperts", "toxificationreversal", "rad-aisteer-75", "sasa-75"]
    assert [printed_row(name, rows) for name in names] == rows
    assert printed_row("rad-aisteer-7", rows) is None
    assert printed_row("rad-75", rows) is None  # the original code, which no table has
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
    assert again.records[0].trials[0].judge_scores == {}
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


def write(folder: Path, model: str, name: str, scores: list[list[float]]) -> list[Record]:
    path = folder / "recorded" / model / name
    path.parent.mkdir(parents=True, exist_ok=True)
    one = run(scores, "own")
    write_published(one, path)
    return one.records


def test_a_folder_that_is_not_the_papers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no files <model>/<method>"):
        recorded_runs(tmp_path)
    write(tmp_path, "qwen3-4b", "own.json", [[0.1]])
    with pytest.raises(InputError, match=r"own\.json: the paper's table has no row for it"):
        recorded_runs(tmp_path)
    write(tmp_path / "other", "m", "tide.json", [[0.1]])
    with pytest.raises(InputError, match=r"tide\.json: the paper's table has no row for it"):
        recorded_runs(tmp_path / "other")


@pytest.mark.parametrize("name", ["rad-aisteer-50", "rad-50"])
def test_a_row_is_there_once(tmp_path: Path, name: str) -> None:
    write(tmp_path, "gemma-2-2b", f"{name}.json", [[0.1]])
    write(tmp_path, "gemma-2-2b", f"{name}.json.gz", [[0.1]])
    with pytest.raises(InputError, match=r"as well; keep one of them"):
        recorded_runs(tmp_path)


def test_the_original_rad_stands_without_printed_numbers(tmp_path: Path) -> None:
    for name in ("tide", "rad-50", "rad-aisteer-50", "base"):
        write(tmp_path, "gemma-2-2b", f"{name}.json", [[0.4, 0.2]])
    some = recorded_runs(tmp_path)
    assert [one.name for one in some] == ["Base model", "RAD (beta=50)", "tide", "rad-50"]
    table, _ = paper_tables(some)
    assert table.rows[1][1:3] == [0.4, 0.206]
    assert table.rows[3][1:4] == [0.4, None, None]
    assert "the original code of RAD" in table.notes[-1]


def test_recorded_completions_are_judged_again(tmp_path: Path) -> None:
    """By how many letters they have; the recorded scores stay beside it."""
    records = write(tmp_path, "qwen3-4b", "base.json", [[0.1, 0.9], [0.2, 0.3]])
    longest = max(len(trial.text) for one in records for trial in one.trials)
    judge = CallableScorer(lambda texts: [float(len(text) == longest) for text in texts])
    (one,) = judged_runs(recorded_runs(tmp_path), [judge])
    found = summarize(one.run).toxicity
    assert [found[name]["rate"].value for name in ("perspective", judge.name)] == [0.5, 1.0]


class Standing:
    """A reference that says the same of every text. made: all that were, until `closed`."""

    made: list[str]

    def __init__(self, name: str, engine: str = "transformers", **options: int) -> None:
        self.name = name
        self.made.append(f"{name} {engine} {options}")

    def measure(self, pairs: list[tuple[str, str]]) -> list[Fluency]:
        return [Fluency(1.0, 20 if n % 2 else 5) for n, _ in enumerate(pairs)]

    def close(self) -> None:
        self.made.append(f"{self.name} closed")


@pytest.fixture
def standing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(Standing, "made", [], raising=False)
    monkeypatch.setattr(paper, "Reference", Standing)
    return Standing.made


def test_references_are_those_of_each_model(tmp_path: Path, standing: list[str]) -> None:
    for model in ("qwen3-4b", "gpt2-large"):
        write(tmp_path, model, "base.json", [[0.1, 0.9], [0.2, 0.3]])
        write(tmp_path, model, "tide.json", [[0.1, 0.9], [0.2, 0.3]])
    some = measured_runs(recorded_runs(tmp_path), ["auto", "global"], engine="vllm", gpus=2)
    names = ["openai-community/gpt2-xl", "Qwen/Qwen3-14B", "Qwen/Qwen3-8B"]
    expected = [[f"{name} vllm {{'gpus': 2}}", f"{name} closed"] for name in names]
    assert standing == [line for lines in expected for line in lines]
    assert {tuple(one.run.references) for one in some} == {
        ("openai-community/gpt2-xl", "Qwen/Qwen3-14B"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B"),
    }


def test_computed_perplexity_stands_beside_the_printed(tmp_path: Path, standing: list[str]) -> None:
    for name in ("base", "tide"):
        write(tmp_path, "gpt2-large", f"{name}.json", [[0.1, 0.9], [0.2, 0.3]])
    some = measured_runs(recorded_runs(tmp_path), ["auto", "global"])
    base, search = next(iter(paper_tables(some))).rows
    values = [getattr(value, "value", value) for value in base[10:]]
    e = math.e
    expected = [
        e,
        e,
        4.13,
        e - 4.13,
        e,
        e,
        e,
        5.07,
        e - 5.07,
        e,
    ]  # mean, of 20, paper, diff, median
    assert values == pytest.approx(expected, abs=1e-4)
    assert search[12] == 5.53
    assert search[17] is None  # by one reference for all, the paper prints the model itself alone
    table = next(iter(paper_tables(some, "exact-20")))
    assert "dropped: Base model 2, tide 2" in table.notes[1]
    assert table.rows[0][1] == pytest.approx((0.9 + 0.3) / 2)
    assert standing


def test_a_row_without_a_completion_of_20_tokens(tmp_path: Path, standing: list[str]) -> None:
    write(tmp_path, "gpt2-large", "base.json", [[0.9]])
    some = measured_runs(recorded_runs(tmp_path), ["auto"])
    (row,) = next(iter(paper_tables(some, "exact-20"))).rows
    # The method and the printed numbers are left.
    assert row == ["Base model", 0.591, 0.495, 0.639, 4.13]
    assert standing


def test_a_model_without_a_reference_of_its_own(tmp_path: Path, standing: list[str]) -> None:
    one = Recorded("m", run([[0.1]]), None)
    with pytest.raises(InputError, match="--reference auto: no reference model is known for m"):
        measured_runs([one], ["auto"])
    assert not standing
