from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.evaluation.runs import JUDGE, REFERENCE, changed, measured, run, search_run
from tide.evaluation import tables
from tide.evaluation.metrics import Estimate, summarize
from tide.evaluation.significance import compare
from tide.evaluation.tables import Column, Table

TABLE = Table(
    name="toy",
    title="50% & more",
    columns=[Column("method"), Column("rate", 2, interval=True), Column("p", form="p")],
    rows=[["a_b|c", Estimate(0.5, 0.4, 0.62), 0.00001], ["d", Estimate(0.25), None]],
    notes=["a note"],
)


def read_csv(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(tables.to_csv(table))))


def headings(table: Table) -> list[str]:
    return [each.heading for each in table.columns]


def printed(table: Table) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(tables.to_rich(table))
    return console.export_text()


def test_tables_have_a_row_per_method() -> None:
    summaries = [summarize(run([[0.2, 0.9], [0.1, 0.1]])), summarize(search_run("tide"))]
    by_scorer = tables.toxicity_table(summaries, "scorer@1", "t", "n")
    assert headings(by_scorer) == ["method", "prompts", "avg max", "avg mean", "toxic rate"]
    base, _ = read_csv(by_scorer)
    assert float(base["avg max"]) == pytest.approx(0.5)
    base, tide = read_csv(tables.text_table(summaries, "t", "n"))
    assert (base["perplexity larger"], tide["perplexity larger"] > "1") == ("", True)
    base, tide = read_csv(tables.cost_table(summaries, "t", "n"))
    assert (base["K-bar"], tide["K-bar"]) == ("", "2.0")
    # Without columns that no run recorded.
    assert headings(tables.cost_table(summaries[:1], "t", "n")) == ["method"]


def test_tables_fit_80_columns() -> None:
    runs = [replace(search_run("resample:temperature=1.0", seed=i), name=f"m{i}") for i in (1, 2)]
    summaries = [summarize(sample_run) for sample_run in runs]
    names = ("a/first", "b/second", "c")
    wide = [
        replace(summary, fluency=dict.fromkeys(names, *summary.fluency.values()))
        for summary in summaries
    ]
    for table in (
        tables.toxicity_table(summaries, JUDGE, "t", "n"),
        tables.text_table(summaries, "t", "n"),
        tables.cost_table(summaries, "t", "n"),
        tables.significance_table(compare(runs), JUDGE, "t", "n"),
        tables.text_table(wide, "t", "n"),
        tables.toxicity_table(wide, JUDGE, "t", "n"),
    ):
        text = printed(table)
        keys = tables.to_csv(table).splitlines()[0].split(",")
        assert len(set(keys)) == len(keys)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
        assert text.count("m1") >= 1
        assert all(column.heading in text for column in table.columns)


@pytest.mark.parametrize(
    "name", ["=1+1", "<img src=x onerror=alert(1)>", "a|b", "one\n\n# two", "$x_1$ & 5%", "\x1b[2J"]
)
def test_names_are_escaped_in_every_format(name: str) -> None:
    """Names of methods and scorers may hold any character."""
    made = Table("toy", "t", [Column("method"), Column("rate")], [[name, 0.5], ["-", 0.1]])
    markdown, latex = tables.to_markdown(made), tables.to_latex(made)
    assert len(markdown.splitlines()) == 6
    for line in markdown.splitlines():
        assert re.sub(r"\\.", "", line).count("|") in (0, 3)
    assert "\x1b" not in printed(made) + markdown + latex
    if name.startswith("$"):
        assert r"\$x\_1\$ \& 5\%" in latex


def test_missing_value_is_a_dash() -> None:
    columns = [Column("method"), Column("rate", interval=True), Column("ppl")]
    made = Table("toy", "t", columns, [["a", None, math.nan], ["b", Estimate(math.nan), 1.0]])
    assert made.cells == [["a", "-", "-"], ["b", "-", "1.000"]]
    for text in (tables.to_markdown(made), tables.to_latex(made)):
        assert "nan" not in text.lower()
        assert "None" not in text
    assert tables.to_csv(made).splitlines()[1] == "a,,"


def test_table_in_each_format() -> None:
    """CSV keeps all digits and both ends of intervals."""
    assert tables.to_markdown(TABLE).splitlines() == [
        "**50% & more**",
        "",
        "| method   |       rate |     p |",
        "|:---------|-----------:|------:|",
        r"| a_b\|c   | 0.50 ±0.11 | 1e-05 |",
        "| d        |       0.25 |     - |",
        "",
        "a note.",
    ]
    text = tables.to_latex(TABLE)
    for part in (r"\begin{tabular}{lrr}", r"a\_b|c & 0.50 ±0.11 & 1e-05 \\"):
        assert part in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    first, second = read_csv(TABLE)
    assert list(first.items()) == [
        *(("method", "a_b|c"), ("rate", "0.5"), ("rate low", "0.4"), ("rate high", "0.62")),
        ("p", "1e-05"),
    ]
    assert (second["rate"], second["rate low"], second["p"]) == ("0.25", "", "")


def test_slug_is_a_name_of_a_file() -> None:
    assert tables.slug("hf:some/model@1#toxic") == "hf-some-model-1-toxic"
    assert tables.slug("../..") == "unnamed"


def test_perplexity_has_columns_for_each_reference() -> None:
    sample_run = measured(
        run([[0.2, 0.1], [0.9, 0.1]]), [[2.0, 3.0], [4.0, 3.0]], [[20, 3], [20, 20]]
    )
    for _, trial in sample_run.trials:
        trial.perplexity["a/b"] = trial.perplexity[REFERENCE]
    sample_run.config["references"] = [REFERENCE, "a/b", "c"]
    table = tables.text_table([summarize(sample_run)], "t", "n")
    (row,) = read_csv(table)
    for name in (REFERENCE, "a/b"):
        values = [float(row[f"perplexity {name}{key}"]) for key in ("", " median")]
        assert values == pytest.approx([3.0] * 2)
    assert "base: perplexity by c is not measured yet for 2 prompts" in table.notes


def test_changed_is_shown_for_every_method_or_none() -> None:
    base, other = run([[0.1], [0.2]]), run([[0.1], [0.2]], "other")
    both = [summarize(each, unmodified_run=base) for each in (base, other)]
    table = tables.toxicity_table(both, JUDGE, "t", "n")
    assert [row[-1].value for row in table.rows if isinstance(row[-1], Estimate)] == [0.0, 0.0]
    assert "changed" in headings(table)
    only_one = [both[0], summarize(other)]
    assert "changed" not in headings(tables.toxicity_table(only_one, JUDGE, "t", "n"))


def test_table_names_prompts_without_scores() -> None:
    summaries = [summarize(changed(run([[0.2], [0.9]]), 1, judge_scores={}))]
    table = tables.toxicity_table(summaries, JUDGE, "t", "n")
    assert "base: 1 of 2 prompts are not scored yet and left out" in table.notes


def test_tables_name_different_numbers_of_completions() -> None:
    summaries = [summarize(search_run("tide", trials=3)), summarize(search_run("single", trials=1))]
    toxicity = tables.toxicity_table(summaries, JUDGE, "t", "n")
    cost = tables.cost_table(summaries, "t", "n")
    for table in (toxicity, cost):
        assert "Completions per prompt: 3 of tide, 1 of single." in " ".join(table.notes)
    alone = tables.toxicity_table(summaries[:1], JUDGE, "t", "n")
    assert "Completions per prompt" not in " ".join(alone.notes)


def test_significance_has_a_row_per_measure() -> None:
    """Of single completions maximum and mean are equal, so one is tested."""
    runs = [
        run([[0.9] * 2, [0.8] * 2]),
        run([[0.1] * 2, [0.3] * 2], "tide"),
        run([[0.1], [0.3]], "single"),
    ]
    table = tables.significance_table(compare(runs), JUDGE, "t", "n")
    rows = read_csv(table)
    measures = [(row["method"], row["measure"]) for row in rows]
    assert measures == [("tide", "max"), ("tide", "mean"), ("single", "mean")]
    assert (rows[0]["pairs"], rows[0]["untied"], rows[0]["differ rate"]) == ("2", "2", "-1.0")
    assert float(rows[0]["differ"]) == pytest.approx(-0.65)
    assert "all 6 tests" in table.notes[2]
    assert "2 completions of single and base are left out" in table.notes[3]
