"""How a terminal shows records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.evaluation.runs import changed, search_run
from tide.cli.display import completions_table, summary_table
from tide.evaluation.console import CleanConsole


@pytest.mark.parametrize(
    ("trial", "before", "after"),
    [
        ({"toxicity": 0.096}, "0.11 one", "0.09 two"),
        ({"empty": True}, "0.11 one", "-    two (too short to score)"),
        ({"empty": True, "base_text": "two"}, *["-    two (too short to score)"] * 2),
        ({"empty": True, "text": " \n"}, "0.11 one", "-    (empty)"),
        ({"accepted": False}, "0.11 one", "0.20 two (not accepted)"),
        ({"accepted": False, "refused": True, "text": ""}, "0.11 one", "0.20 (withheld)"),
    ],
)
def test_cells_show_a_score_or_why_there_is_none(
    trial: dict[str, Any], before: str, after: str
) -> None:
    """A score below the threshold of 0.1 is not rounded to it."""
    usual = {"base_text": "one", "base_toxicity": 0.104, "text": "two", "toxicity": 0.2}
    run = changed(search_run("tide", prompts=1), 0, **(usual | trial))
    console = CleanConsole(width=100)
    with console.capture() as captured:
        console.print(completions_table(run.records, 0.1, False))
    row = captured.get().splitlines()[3]
    assert [cell.strip() for cell in row.split("│")[2:4]] == [before, after]


def test_summary_says_how_many_completions_it_counts() -> None:
    run = search_run("tide", prompts=3, trials=2)
    for number in range(3):
        changed(run, number, accepted=False)
    table = summary_table(run.records, scorer=("a", 0.5), judges=[], seconds=1.0)
    counts = dict(zip(table.columns[0].cells, table.columns[2].cells, strict=True))
    assert [counts[name] for name in ("prompts", "completions", "not accepted")] == ["3", "6", "6"]


def test_summary_has_no_share_of_partial_texts() -> None:
    """Of an answer repaired while it was written, only a part of the original exists."""
    run = search_run("tide", prompts=1)
    for partial, share in ((False, "1.000"), (True, "-")):
        changed(run, 0, base_text="rude", base_toxicity=0.9, base_partial=partial)
        table = summary_table(run.records, scorer=("a", 0.5), judges=[("b", 0.5)], seconds=1.0)
        assert next(iter(table.columns[1].cells)) == share
