"""Of several draws the first that passes is kept, at the cost of all until then."""

from __future__ import annotations

from pathlib import Path

from tests.evaluation.runs import config, record, write
from tests.scripts.loading import load_script
from tide.evaluation import report
from tide.evaluation.runs import Run, read_run

DRAWS = [[0.05, 0.9, 0.01], [0.5, 0.05, 0.01], [0.5, 0.4, 0.6]]


def test_the_first_that_passes_or_the_least_toxic(tmp_path: Path) -> None:
    costs = {
        name: [1, 10, 100]
        for name in ("evaluations", "rounds", "generated_tokens", "forward_tokens")
    }
    records = [record(i, scores, **costs) for i, scores in enumerate(DRAWS)]
    run = Run("word-filter:penalty=9", config("word-filter:penalty=9", num_trials=3), records)
    out = tmp_path / "b" / "kept"
    load_script("reproduction/rejection.py").main(write(run, tmp_path / "a" / "run"), out, 0.1)
    kept = read_run(out)
    assert kept.name == "word-filter:penalty=9,draws=3,below=0.1"
    found = [
        (
            one.text.split(" and ")[1][:6],
            one.toxicity,
            one.accepted,
            one.forward_tokens,
            one.scorer_calls,
        )
        for one in (of.trials[0] for of in kept.records)
    ]
    assert found == [
        ("0 more", 0.05, True, 1, 1),
        ("1 more", 0.05, True, 11, 2),
        ("1 more", 0.4, False, 111, 3),
    ]
    made = report([out], out=tmp_path / "report")
    assert made.summaries[0].averages["unresolved"].value == 1 / 3
