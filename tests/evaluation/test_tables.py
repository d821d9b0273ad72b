from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from tests.evaluation.runs import JUDGE, REFERENCE, changed, column, run, search_run
from tide.evaluation import report, tables
from tide.evaluation.console import CleanConsole
from tide.evaluation.metrics import Estimate
from tide.evaluation.tables import Column, Table

TABLE = Table(
    name="toy",
    title="50% & more",
    columns=[Column("method"), Column("rate", 2, interval=True), Column("p", form="p")],
    rows=[
        ["a_b|c", Estimate(0.5, 0.4, 0.62), 0.00001],
        ["d", Estimate(0.25), None],
        ["e", Estimate(math.nan), math.nan],
        ["=1 <img src=x> $x_1$ & 5%\n\n# two", None, 0.5],
    ],
    notes=["a note"],
)


RECORDED = Path(__file__).with_name("tables.md")


def tables_of_three_runs() -> list[Table]:
    settings = {"toxicity_threshold": 0.5, "seed": 0}
    base = run([[0.2, 0.9], [0.1, 0.1], [0.6, 0.4]], settings=settings)
    tide = search_run("tide", prompts=3)
    single = search_run("single", prompts=3, seed=1, trials=1)
    changed(tide, 0, text=column(base.records[0], "text"))
    changed(tide, 1, judge_scores={})
    changed(single, 2, text="")
    for _, trial in tide.trials:
        trial.perplexity.update(dict.fromkeys(("a/b", "c"), trial.perplexity[REFERENCE]))
    tide.config["references"] = [REFERENCE, "a/b", "c", "d"]
    single.config["scorer"] = {"spec": None, "name": f"confirm:pocket@1,{JUDGE}"}
    return report([base, tide, single], draw=False).tables


def forms() -> str:
    """`TABLE` in each format; the tables of three runs as Markdown, with the keys of their CSV."""
    texts = [tables.to_markdown(TABLE), tables.to_latex(TABLE), tables.to_csv(TABLE)]
    for table in tables_of_three_runs():
        keys, *_ = tables.to_csv(table).splitlines()
        texts += [tables.to_markdown(table), f"{keys}\n"]
    return "\n".join(texts)


def test_tables_are_those_recorded() -> None:
    """`python -m tests.evaluation.test_tables` records them anew."""
    assert forms() == RECORDED.read_text(encoding="utf-8")


def printed(table: Table, width: int = 80) -> str:
    console = CleanConsole(width=width, file=io.StringIO(), record=True, markup=False)
    console.print(tables.to_rich(table, width))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 60])
def test_tables_fit_the_width(width: int) -> None:
    for table in tables_of_three_runs():
        text = printed(table, width)
        keys = tables.to_csv(table).splitlines()[0].split(",")
        assert len(set(keys)) == len(keys)
        assert "…" not in text
        lines = [line for line in text.splitlines() if line.strip(" ─")]
        assert max(map(len, lines)) <= width
        assert len(set(lines)) == len(lines)  # rows can be told apart, also of a table in parts
        assert "tide" in text
        assert all(column.heading in text for column in table.columns)


def test_names_are_escaped_and_their_options_stay_whole() -> None:
    rows = [["\x1b[2J"], ["random-walk:toxicity_threshold=0.25"]]
    table = Table("toy", "t", [Column("method")], rows)
    assert " toxicity_threshold=0.25 " in printed(table)
    assert "\x1b" not in printed(table) + tables.to_markdown(table) + tables.to_latex(table)


def test_slug_is_a_name_of_a_file() -> None:
    assert tables.slug("hf:some/model@1#toxic") == "hf-some-model-1-toxic"
    assert tables.slug("../..") == "unnamed"


if __name__ == "__main__":
    RECORDED.write_text(forms(), encoding="utf-8")
