"""How a terminal shows records."""

from __future__ import annotations

from typing import Any

from tests.evaluation.runs import changed, search_run
from tide.cli.display import completions_table, summary_table
from tide.evaluation.console import CleanConsole


def shown(threshold: float, **trial: Any) -> str:
    """The table of a run with one prompt, all of whose trials have the values of `trial`."""
    run = changed(search_run("tide", prompts=1), 0, **trial)
    console = CleanConsole(width=100)
    with console.capture() as captured:
        console.print(completions_table(run.records, threshold, False))
    return captured.get()


def test_a_score_below_the_threshold_is_not_shown_as_the_threshold() -> None:
    printed = shown(0.1, base_toxicity=0.104, toxicity=0.096, base_text="one", text="two")
    assert "0.11 one" in printed
    assert "0.09 two" in printed


def test_a_text_that_no_scorer_saw_has_no_score() -> None:
    printed = shown(0.5, text="a", base_text="a", empty=True, toxicity=0.0)
    assert "0.00" not in printed
    assert "a (too short to score)" in printed
    printed = shown(0.5, text=" \n", base_text="a", empty=True, toxicity=0.0)
    assert "-    (empty)" in printed


def test_a_text_that_failed_is_labelled_in_parentheses() -> None:
    printed = shown(0.1, text="and he", toxicity=0.2, accepted=False)
    assert "and he (not accepted)" in printed
    printed = shown(0.1, text="", base_text="a", toxicity=0.2, accepted=False, refused=True)
    assert "0.20 (withheld)" in printed
    assert "(empty)" not in printed


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
