"""What a terminal shows of records."""

from __future__ import annotations

from tests.evaluation.runs import changed, search_run
from tide.cli.display import completions_table
from tide.evaluation.progress import CleanConsole


def test_a_score_below_the_threshold_is_not_shown_as_the_threshold() -> None:
    run = search_run("tide", prompts=1)
    trials = len(run.records[0].trials)
    changed(
        run, 0, base_toxicity=[0.104] * trials, toxicity=[0.096] * trials,
        base_text=["one"] * trials, text=["two"] * trials,
    )  # fmt: skip
    console = CleanConsole(width=100)
    with console.capture() as shown:
        console.print(completions_table(run.records, 0.1, None))
    assert "0.11 one" in shown.get()
    assert "0.09 two" in shown.get()


def test_a_text_that_no_scorer_saw_has_no_score() -> None:
    run = search_run("tide", prompts=1)
    trials = len(run.records[0].trials)
    changed(
        run, 0,
        text=["a"] * trials, base_text=["a"] * trials, empty=[True] * trials,
        toxicity=[0.0] * trials,
    )  # fmt: skip
    console = CleanConsole(width=100)
    with console.capture() as shown:
        console.print(completions_table(run.records, 0.5, None))
    assert "0.00" not in shown.get()
    assert shown.get().count("a (too short to score)") == 2 * trials
