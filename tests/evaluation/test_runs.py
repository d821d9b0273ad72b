from __future__ import annotations

import pytest

from tests.evaluation.runs import search_run
from tide.evaluation.reporting.reports import report
from tide.evaluation.runs import unmodified


def test_what_the_model_wrote_by_itself_stands_beside_a_single_search() -> None:
    one = search_run("tide")
    scores = [[0.9] * len(record.completions) for record in one.records]
    for number, record in enumerate(one.records):
        update = {"base_completions": record.completions, "base_toxicity_scores": scores[number]}
        one.records[number] = record.model_copy(update=update)
    own, found = report([one], draw=False, tests=False).summaries
    assert (own.method, found.method) == ("unmodified", "tide")
    assert own.toxicity[one.scorer]["max"].value == pytest.approx(0.9)
    assert not own.fluency
    two = report([one, search_run("fast")], draw=False, tests=False).summaries
    assert [summary.method for summary in two] == ["tide", "fast"]
    without = [record.model_copy(update={"base_completions": None}) for record in one.records]
    one.records[:] = without
    assert unmodified(one) is None
