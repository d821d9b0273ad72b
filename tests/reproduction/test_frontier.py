from __future__ import annotations

import pytest
from reproduction.frontier import draw_frontier, rows_by_threshold

from tests.evaluation.runs import JUDGE, changed, run, search_run
from tests.evaluation.test_figures import drawn
from tide.evaluation.runs import Run


def at_threshold(name: str, threshold: float, scores: list[float]) -> Run:
    run_at = search_run(name, prompts=len(scores), trials=1)
    for number, score in enumerate(scores):
        changed(run_at, number, toxicity=score, judge_scores={JUDGE: score})
    run_at.config["settings"]["toxicity_threshold"] = threshold
    return run_at


def test_frontier_counts_what_a_threshold_alters() -> None:
    """A search of whole texts alters what the guide fails; `backtrack` has runs of its own."""
    unsteered = run([[0.2], [0.05], [0.01]])
    walk = at_threshold("random-walk:toxicity_threshold=0.1", 0.1, [0.9, 0.01, 0.01])
    rewound = at_threshold("backtrack:toxicity_threshold=0.1", 0.1, [0.01, 0.01, 0.01])
    answers = at_threshold("backtrack:toxicity_threshold=0.1", 0.1, [0.05, 0.05, 0.01])
    for number, record in enumerate(unsteered.records[:2]):
        changed(answers, number, text=[record.trials[0].text])
    rows = rows_by_threshold([unsteered, walk, rewound], [unsteered, answers])
    assert [(row["method"], row["threshold"], row.get("altered")) for row in rows] == [
        ("base", None, None),
        ("backtrack", 0.1, pytest.approx(1 / 3)),
        ("random-walk", 0.1, pytest.approx(1 / 3)),
    ]
    assert [row[f"toxic by {JUDGE}"] for row in rows] == [0, 0, pytest.approx(1 / 3)]
    (panel,) = drawn(draw_frontier(rows, [JUDGE]))
    assert panel.get_legend_handles_labels()[1] == ["backtrack", "random-walk"]
