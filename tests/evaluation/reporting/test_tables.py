from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from tests.evaluation.runs import JUDGE, REFERENCE, changed, column, measured, run, search_run
from tide.evaluation.metrics import Estimate, over_seeds, summarize
from tide.evaluation.reporting import tables
from tide.evaluation.reporting.tables import Column, Table
from tide.evaluation.significance import ITERATIONS, compare

TABLE = Table(
    name="toy",
    title="50% & more",
    columns=[Column("method"), Column("rate", 2, interval=True), Column("p", form="p")],
    rows=[["a_b|c", Estimate(0.5, 0.4, 0.62), 0.00001], ["d", Estimate(0.25), None]],
    notes=["a note"],
)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_a_method_and_a_table_a_source() -> None:
    summaries = [summarize(run([[0.2, 0.9], [0.1, 0.1]])), summarize(search_run("tide"))]
    by_scorer = tables.quality_table(summaries, "scorer@1", "t", "n")
    headings = [column.heading for column in by_scorer.columns]
    assert headings == [
        *("method", "prompts", "avg max", "avg mean", "toxic rate"),
        *("perplexity", "of 20", "median", "K-bar"),
    ]
    base, tide = read_csv(tables.to_csv(by_scorer))
    assert float(base["avg max"]) == pytest.approx(0.5)
    assert (base["perplexity"], base["K-bar"], tide["K-bar"]) == ("", "", "2.0")
    by_judge = tables.quality_table(summaries, JUDGE, "t", "n")
    assert by_judge.rows[0][2] == summaries[0].toxicity[JUDGE]["max"]


def test_every_column_is_explained_where_it_stands() -> None:
    searched = search_run("tide")
    for number, some in enumerate(searched.records):
        changed(searched, number, base_text=column(some, "text"))
    runs = [run([[0.2, 0.9]] * 6), searched]
    summaries = [summarize(one) for one in runs]
    made = [
        tables.quality_table(summaries, JUDGE, "t", "n"),
        tables.fluency_table(summaries, "t", "n"),
        tables.moved_table(summaries, "t", "n"),
        tables.cost_table(summaries, "t", "n"),
        tables.significance_table(compare(runs), JUDGE, "t", "n"),
    ]
    for table in made:
        assert len(table.columns) > 3
        for each in table.columns[1:]:
            assert f"{each.heading}: " in "; ".join(table.legend), each
        assert all(note in tables.to_html(table).replace("&#x27;", "'") for note in table.legend)
    quality = tables.to_markdown(made[0])
    assert "K-bar: mean iterations of a search; the prompt itself is the first" in quality
    without = tables.quality_table(summaries[:1], JUDGE, "t", "n")
    assert "K-bar" not in tables.to_markdown(without)


def test_all_tables_fit_a_terminal() -> None:
    runs = [replace(search_run("resample:temperature=1.0", seed=i), name=f"m{i}") for i in (1, 2)]
    summaries = [summarize(one) for one in runs]
    made = [
        tables.quality_table(summaries, JUDGE, "t", "n"),
        tables.fluency_table(summaries, "t", "n"),
        tables.cost_table(summaries, "t", "n"),
        tables.significance_table(compare(runs), JUDGE, "t", "n"),
    ]
    names = ("a/first", "b/second", "c")
    wide = [replace(one, fluency=dict.fromkeys(names, *one.fluency.values())) for one in summaries]
    made += [tables.fluency_table(wide, "t", "n"), tables.quality_table(wide, JUDGE, "t", "n")]
    for table in made:
        console = Console(width=80, file=io.StringIO(), record=True)
        console.print(tables.to_rich(table))
        text = console.export_text()
        keys = tables.to_csv(table).splitlines()[0].split(",")
        assert len(set(keys)) == len(keys)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80
        assert text.count("m1") >= 1
        assert all(column.heading in text for column in table.columns)


def test_long_names_go_on_below_between_their_options() -> None:
    name = "sasa:beta=500,candidates=1000,normalize=softmax,labels=any"
    for one in (name, "tide:" + "n" * 58):
        table = tables.cost_table([summarize(search_run(one))], "t", "n")
        console = Console(width=80, file=io.StringIO(), record=True)
        console.print(tables.to_rich(table))
        column = [line[1:].split(" ")[0] for line in console.export_text().splitlines()]
        at = next(i for i, text in enumerate(column) if one.startswith(text) and text)
        assert column[at] + column[at + 1] == one
        assert column[at].endswith("," if one is name else "n")


HOSTILE = [
    '=HYPERLINK("http://elsewhere.test","all is well")',
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "<img src=x onerror=alert(1)>",
    "![](http://elsewhere.test/seen.png)",
    "a\\|b",
    "`code`",
    "one\n\n# two\r| three |",
    "\\input{/etc/passwd}",
    "$^^4d$",
    "right\u202eleft\x1b[2J",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_of_somebody_else_is_only_text(name: str) -> None:
    """A hostile name of a method, title, heading or note."""
    made = Table("toy", name, [Column(name), Column("rate")], [[name, 0.5], ["-", 0.1]], [name])
    header, first, _ = csv.reader(io.StringIO(tables.to_csv(made)))
    for cell in (header[0], first[0]):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert tables.to_csv(made).count("\n") == 3
    lines = tables.to_markdown(made).splitlines()
    assert len(lines) == 8
    for line in lines:
        # Apart from escaped characters there is no tag, link, code or further cell.
        bare = re.sub(r"\\.", "", line)
        assert not re.search(r"[<>`\[\]]", bare)
        assert bare.count("|") in (0, 3)
    latex = tables.to_latex(made)
    assert latex.count("\n") == tables.to_latex(TABLE).count("\n")
    assert "\\input" not in latex
    assert "^^" not in latex
    for text in (tables.to_csv(made), "".join(lines), latex):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)


def test_a_table_in_each_format() -> None:
    """CSV keeps all digits and both ends of intervals."""
    assert tables.to_markdown(TABLE).splitlines() == [
        "**50% & more**",
        "",
        "| method | rate | p |",
        "| --- | ---: | ---: |",
        r"| a_b\|c | 0.50 ±0.11 | 1e-05 |",
        "| d | 0.25 | - |",
        "",
        "a note.",
    ]
    text = tables.to_latex(TABLE)
    assert r"\caption{50\% \& more; a note.}" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"  a\_b\textbar{}c & 0.50 $\pm$0.11 & 1e-05 \\" in text
    assert [r"\toprule" in text, r"\midrule" in text, r"\bottomrule" in text] == [True] * 3
    first, second = read_csv(tables.to_csv(TABLE))
    assert first == {
        **{"method": "a_b|c", "rate": "0.5", "rate low": "0.4", "rate high": "0.62"},
        **{"p": "1e-05"},
    }
    assert (second["rate"], second["rate low"], second["p"]) == ("0.25", "", "")
    assert tables.slug("hf:some/model@1#toxic") == "hf-some-model-1-toxic"
    assert tables.slug("../..") == "unnamed"


def test_a_column_a_reference_and_a_note_on_what_was_dropped() -> None:
    one = measured(run([[0.2, 0.1], [0.9, 0.1]]), [[2.0, 3.0], [4.0, 3.0]], [[20, 3], [20, 20]])
    for number, record in enumerate(one.records):
        known = column(record, "perplexity")
        changed(one, number, perplexity=known | {"a/b": known[REFERENCE]})
    one.config["references"] = [REFERENCE, "a/b"]
    for make in (tables.quality_table, lambda s, *rest: tables.fluency_table(s, *rest[1:])):
        (row,) = read_csv(tables.to_csv(make([summarize(one)], JUDGE, "t", "n")))
        for name in (REFERENCE, "a/b"):
            keys = ("", " of 20 tokens", " median")
            found = [float(row[f"perplexity {name}{key}"]) for key in keys]
            assert found == pytest.approx([3.0] * 3)
    table = tables.quality_table([summarize(one, valid="exact-20")], JUDGE, "t", "n")
    assert "dropped: base 1" in table.notes[-1]


def test_seeds_and_what_is_missing_are_told() -> None:
    one = run([[0.2], [0.9]])
    changed(one, 1, judge_scores={})
    summaries = [summarize(one), over_seeds([summarize(run([[x], [x]])) for x in (0.1, 0.3)], "s")]
    table = tables.quality_table(summaries, JUDGE, "t", "n")
    assert "base: 1 of 2 prompts are not scored yet and left out" in table.notes
    assert "| s | 0.200 ±0.141 |" in tables.to_markdown(table)
    assert "standard deviation" in tables.to_markdown(table)
    assert float(read_csv(tables.to_csv(table))[1]["avg max std"]) == pytest.approx(
        0.1414, abs=1e-4
    )
    assert "<td>0.200 ±0.141</td>" in tables.to_html(table)
    without = tables.cost_table(summaries[:1], "t", "n")  # without columns that no run recorded
    assert [each.heading for each in without.columns] == ["method"]


def headings(table: Table) -> list[str]:
    return [each.heading for each in table.columns]


def test_significance_by_one_source_and_of_iterations() -> None:
    comparisons = compare([run([[0.9] * 2, [0.8] * 2]), run([[0.1] * 2, [0.3] * 2], "tide")])
    table = tables.significance_table(comparisons, JUDGE, "t", "n")
    (row,) = read_csv(tables.to_csv(table))
    assert (row["method"], row["pairs"], row["untied max"]) == ("tide", "2", "2")
    assert row["p (Holm) mean"]
    assert float(row["diff max"]) == pytest.approx(-0.65)
    assert float(row["diff rate"]) == -1.0
    assert -1.0 < float(row["diff rate high"]) < 0
    assert "all 4 tests" in table.notes[2]
    one_each = compare([run([[0.9], [0.8]]), run([[0.1], [0.3]], "tide")])
    table = tables.significance_table(one_each, JUDGE, "t", "n")
    assert headings(table) == ["method", "pairs", "rate", "toxicity", "untied", "p", "Holm"]
    searches = [replace(search_run("tide", seed=seed), name=f"m{seed}") for seed in (1, 2)]
    table = tables.significance_table(compare(searches, "m1"), ITERATIONS, "t", "n")
    assert headings(table) == ["method", "pairs", "iterations", "untied", "p", "Holm"]
    assert not any("95 %" in note for note in table.notes)


def test_moved_completions_have_a_row_a_search_and_a_column_a_source() -> None:
    one = search_run("shuffled")
    for number, some in enumerate(one.records):
        changed(one, number, base_text=column(some, "text"))
    table = tables.moved_table([summarize(run([[0.1]])), summarize(one)], "t", "n")
    assert [row[0] for row in table.rows] == ["shuffled"]
    toxic = ["toxic 1", "toxic 2"]
    assert headings(table) == ["method", "moved", "ppl", "p95", *toxic, "alike", "displaced"]
    assert table.rows[0][-2] == Estimate(1.0, 1.0, 1.0)
