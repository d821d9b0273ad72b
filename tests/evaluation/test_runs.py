from __future__ import annotations

import pytest

from tests.evaluation.runs import changed, column, search_run
from tide.evaluation.reporting.reports import report
from tide.evaluation.runs import unmodified


def test_what_the_model_wrote_by_itself_stands_beside_a_single_search() -> None:
    one = search_run("tide")
    for number, record in enumerate(one.records):
        texts, scores = column(record, "text"), [0.9] * len(record.trials)
        changed(one, number, base_text=texts, base_toxicity=scores)
    own, found = report([one], draw=False, tests=False).summaries
    assert (own.method, found.method) == ("unmodified", "tide")
    assert own.toxicity[one.scorer]["max"].value == pytest.approx(0.9)
    assert not own.fluency
    two = report([one, search_run("shuffled")], draw=False, tests=False).summaries
    assert [summary.method for summary in two] == ["tide", "shuffled"]
    changed(one, 0, base_text=None)
    assert unmodified(one) is None
