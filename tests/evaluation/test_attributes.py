"""Attributes by the search's own scorer, from the search to the report."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from tests.evaluation.runs import column
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.results import Result
from tide.data.records import to_record
from tide.detoxifier.sync import Detoxifier
from tide.scorers import Attributed


class Sides(ReadingScorer):
    """Like `ReadingScorer`, with two attributes: whether a text is long, and half its score."""

    attributes = ("long", "half")

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        scores = np.asarray(self.score(texts))
        return Attributed(scores, {"long": np.array([float(len(t) > 9) for t in texts]),
                                   "half": scores / 2})  # fmt: skip


def test_records_have_attributes_of_scored_texts() -> None:
    result = Detoxifier(scripted_engine(), scorer=Sides(), num_trials=2)(PROMPTS[0])
    for one in result.trace:
        said = {} if one.empty else {"long": float(len(one.text) > 9), "half": one.toxicity / 2}
        assert one.attributes == pytest.approx(said)
    assert Result.model_validate_json(result.model_dump_json()) == result
    lines = to_record("x", result).lines()
    halves = [json.loads(line)["attributes"]["half"] for line in lines]
    assert halves == [trial.toxicity / 2 for trial in result.trials]
    plain = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)(PROMPTS[0])
    assert [trial.text for trial in plain.trials] == [trial.text for trial in result.trials]
    assert column(to_record("x", plain), "attributes") is None
    # Earlier results have no such field.
    before = plain.model_dump()
    for trial in before["trials"]:
        for one in trial["trace"]:
            del one["attributes"]
    assert Result.model_validate_json(json.dumps(before)) == plain
