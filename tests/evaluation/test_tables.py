from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.evaluation.runs import JUDGE, search_run
from tide.evaluation import tables
from tide.evaluation.metrics import Estimate, summarize
from tide.evaluation.significance import compare
from tide.evaluation.tables import Column, Table

TABLE = Table(
    name="toy",
    title="50% & more",
    columns=[Column("method"), Column("rate", 2, interval=True), Column("p", form="p")],
    rows=[
        ["a_b|c", Estimate(0.5, 0.4, 0.62), 0.00001],
        ["d", Estimate(0.25), None],
        ["e", Estimate(math.nan), math.nan],
        ["f", None, 0.5],
    ],
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


def test_table_in_each_format() -> None:
    """CSV keeps all digits and both ends of intervals."""
    assert tables.to_markdown(TABLE).splitlines() == [
        "**50% & more**",
        "",
        "| method   |       rate |     p |",
        "|:---------|-----------:|------:|",
        r"| a_b\|c   | 0.50 ±0.11 | 1e-05 |",
        "| d        |       0.25 |     - |",
        "| e        |          - |     - |",
        "| f        |          - | 0.500 |",
        "",
        "a note.",
    ]
    text = tables.to_latex(TABLE)
    for part in (r"\begin{tabular}{lrr}", r"a\_b|c & 0.50 ±0.11 & 1e-05 \\"):
        assert part in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert "nan" not in text
    assert "None" not in text
    first, second, third, _ = read_csv(TABLE)
    assert list(first.items()) == [
        *(("method", "a_b|c"), ("rate", "0.5"), ("rate low", "0.4"), ("rate high", "0.62")),
        ("p", "1e-05"),
    ]
    assert (second["rate"], second["rate low"], second["p"]) == ("0.25", "", "")
    assert (third["rate"], third["p"]) == ("", "")


def test_slug_is_a_name_of_a_file() -> None:
    assert tables.slug("hf:some/model@1#toxic") == "hf-some-model-1-toxic"
    assert tables.slug("../..") == "unnamed"
