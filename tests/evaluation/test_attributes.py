"""Attributes by the search's own scorer, from the search to the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.evaluation.runs import column
from tests.runtime.world import PROMPT, Reader, never, story, third
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


class LongReader(Reader):
    """Bad sentences are threats; long texts are insults."""

    attributes = ("threat", "insult")

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        scores = self.score(texts)
        return Attributed(scores, {
            "threat": np.array([float("Bad" in text) for text in texts]),
            "insult": np.array([min(1.0, len(text) / 1000) for text in texts]),
        })  # fmt: skip


class Forgetful(LongReader):
    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        found = super().score_attributes(texts)
        found.attributes["threat"][:] = np.nan
        return found


@pytest.mark.parametrize("bad", [never, third])
def test_answer_has_the_largest_attributes_of_its_parts(bad: Any) -> None:
    trial = story(bad, LongReader())(PROMPT).best
    assert trial.accepted
    whole = len(trial.text) / 1000
    assert trial.returned.attributes == {"threat": 0.0, "insult": pytest.approx(whole)}
    if bad is third:
        assert trial.base.attributes["threat"] == 1.0
    # An earlier cache has only the scores of some texts.
    trial = story(bad, Forgetful())(PROMPT).best
    assert trial.accepted
    assert trial.returned.attributes.keys() == {"insult"}
