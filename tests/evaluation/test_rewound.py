"""Runs of rewound answers: recorded, judged and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes import FakeScorer
from tests.runtime.world import SETTINGS, Reader, Storyteller, text, third
from tide.evaluation import Run, evaluate, report
from tide.evaluation.metrics import summarize
from tide.evaluation.reports import page


def run(out: Path, judges: Any = ()) -> list[Run]:
    prompts = ["once upon a time", "an other tale here", "and again a time", "so it is told"]
    settings = {**SETTINGS}
    return evaluate(
        prompts,
        ["base", settings.pop("strategy"), "random-walk"],
        model=Storyteller(third, max_batch=2),
        scorer=Reader(),
        judges=judges,
        reference="none",
        out=out,
        num_trials=1,
        **settings,
    )


def test_partial_base_texts_are_left_out_of_comparisons(tmp_path: Path) -> None:
    """It is shown as a part; the model's own whole answers are those of `base`."""
    judge = FakeScorer(lambda text: 0.9 if "Bad" in text else 0.1, name="judge")
    base, rewound, whole = run(tmp_path, judges=judge)
    runs = (base, rewound, whole)
    rates = [summarize(each_run).toxicity["judge"]["rate"].value for each_run in runs]
    assert rates == [1.0, 0.0, 0.0]
    for _, trial in rewound.trials:
        assert trial.base_text == text("Good0", "Good1", "Bad2")
        assert trial.base_partial
        assert trial.base_score() is trial.base_score("judge") is None
    assert all(trial.base_score("judge") is not None for _, trial in whole.trials)
    for shown_runs, is_cut_off in (([rewound], True), ([whole, base], False)):
        made = report(shown_runs, draw=False)
        names = [summary.method for summary in made.summaries]
        assert names == [each_run.name for each_run in shown_runs]
        shown = page(made.groups, made.tables, made.figures)
        assert ("(cut off by the repair)" in shown) == is_cut_off
