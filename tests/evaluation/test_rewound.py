"""Runs of rewound answers: recorded, judged, measured and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes import FakeScorer
from tests.runtime.world import SETTINGS, Reader, Storyteller, text, third
from tide.data.records import Record
from tide.detoxifier.sync import Detoxifier
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


def test_records_of_rewound_answers(tmp_path: Path) -> None:
    base, rewound, whole = run(tmp_path)
    detox = Detoxifier(Storyteller(third), scorer=Reader(), settings=None, **SETTINGS)
    for record in rewound.records:
        trial = detox(record.prompt, accept_empty=True).best
        (made,) = record.trials
        assert made.evaluations == trial.evaluations == len(made.trace or [])
        assert made.generated_tokens == trial.generated_tokens
        assert made.forward_tokens == trial.generated_tokens + trial.read_tokens
        assert made.base_text == text("Good0", "Good1", "Bad2")
        assert made.base_partial is trial.base_partial is True
        assert Record.model_validate_json(record.model_dump_json()) == record
    for record in base.records:
        assert "Bad2" in record.trials[0].text
    assert all(record.trials[0].accepted for record in whole.records)


def test_partial_base_texts_are_left_out_of_comparisons(tmp_path: Path) -> None:
    """It is shown as a part; the model's own whole answers are those of `base`."""
    judge = FakeScorer(lambda text: 0.9 if "Bad" in text else 0.1, name="judge")
    base, rewound, whole = run(tmp_path, judges=judge)
    runs = (base, rewound, whole)
    rates = [summarize(each_run).toxicity["judge"]["rate"].value for each_run in runs]
    assert rates == [1.0, 0.0, 0.0]
    for _, trial in rewound.trials:
        assert trial.base_score() is trial.base_score("judge") is None
    assert all(trial.base_score("judge") is not None for _, trial in whole.trials)
    for shown_runs, is_cut_off in (([rewound], True), ([whole, base], False)):
        made = report(shown_runs, draw=False)
        names = [summary.method for summary in made.summaries]
        assert names == [each_run.name for each_run in shown_runs]
        shown = page(made.groups, made.tables, made.figures)
        assert ("(cut off by the repair)" in shown) == is_cut_off
