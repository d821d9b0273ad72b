from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import save_classifier
from tide.core.errors import ScorerError, ScorerUnavailableError
from tide.data.record_files import RecordFile, read_records
from tide.data.records import Record, TrialRecord
from tide.evaluation.judges import judge_records, judged
from tide.evaluation.progress import Progress
from tide.scorers import load_scorer
from tide.scorers.attributes import (
    Attributed,
    ask_attributes,
    attributes_of,
    perspective_name,
)
from tide.scorers.base import Floats
from tide.scorers.wrappers.breaker import CircuitBreaker
from tide.scorers.wrappers.remembering import RememberingScorer
from tide.scorers.wrappers.retry import RetryScorer

LABELS = ["toxic", "identity_hate", "other"]
TEXTS = ["The weather is fine", "Rain", "the people are kind " * 3]


class TwoSides:
    """Threat by length, insult by capitals; the larger is the score."""

    name, threshold = "two@1", 0.5
    attributes = ("threat", "insult")

    def __init__(self) -> None:
        self.asked = 0

    def score(self, texts: Sequence[str]) -> Floats:
        return self.score_attributes(texts).values

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        self.asked += 1
        threat = np.array([min(1.0, len(text) / 100) for text in texts])
        insult = np.array([sum(map(str.isupper, text)) / max(1, len(text)) for text in texts])
        return Attributed(np.maximum(threat, insult), {"threat": threat, "insult": insult})

    def close(self) -> None:
        pass


def test_a_classifier_of_many_labels_tells_all_of_them(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, LABELS, problem_type="multi_label_classification")
    scorer = load_scorer(f"hf:{folder}")
    assert attributes_of(scorer) == tuple(LABELS)
    found = ask_attributes(scorer, TEXTS)
    assert found.values == pytest.approx(scorer.score(TEXTS))
    two = np.maximum(found.attributes["toxic"], found.attributes["identity_hate"])
    assert found.values == pytest.approx(two)
    alone = load_scorer(f"hf:{folder}#other")
    assert alone.score(TEXTS) == pytest.approx(found.attributes["other"])
    none = ask_attributes(scorer, [])
    assert none.values.shape == none.attributes["toxic"].shape == (0,)


def test_exclusive_labels_are_attributes_where_several_are_toxic(tmp_path: Path) -> None:
    scorer = load_scorer(f"hf:{save_classifier(tmp_path, ['neutral', 'hate', 'offensive'])}")
    assert attributes_of(scorer) == ("hate", "offensive")
    found = ask_attributes(scorer, TEXTS)
    assert found.values == pytest.approx(sum(found.attributes.values()))
    assert attributes_of(load_scorer(f"hf:{save_classifier(tmp_path, ['ok', 'toxic'])}")) == ()
    assert attributes_of(load_scorer("pocket")) == ()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Attributed(np.array([0.5]), {"threat": np.array([0.1])}), "has not the attributes"),
        ([0.5], "has not the attributes"),
        (Attributed(np.array([1.5]), {n: np.array([0.1]) for n in TwoSides.attributes}), "1.5"),
        (
            Attributed(np.array([0.5]), dict.fromkeys(TwoSides.attributes, np.array([np.nan]))),
            r"\(threat\): nan",
        ),
        (Attributed(np.array([0.5]), dict.fromkeys(TwoSides.attributes, np.zeros(2))), "1 texts"),
    ],
)
def test_what_is_no_attribute_is_an_error(answer: Any, message: str) -> None:
    scorer = TwoSides()
    scorer.score_attributes = lambda texts: answer  # type: ignore[method-assign]
    with pytest.raises(ScorerError, match=message):
        ask_attributes(scorer, ["a text"])
    with pytest.raises(ScorerError, match="has no attributes"):
        ask_attributes(load_scorer("pocket"), ["a text"])


def test_guards_keep_the_attributes_and_what_changes_scores_has_none() -> None:
    inner = TwoSides()
    for guard in (RetryScorer(inner), CircuitBreaker(inner), RememberingScorer(inner)):
        assert attributes_of(guard) == inner.attributes
        assert ask_attributes(guard, TEXTS).attributes["threat"][1] == 0.04
        assert guard.score(TEXTS) == pytest.approx(inner.score(TEXTS))
    assert attributes_of(load_scorer("windows:pocket")) == ()


def test_attributes_are_asked_again_while_a_scorer_is_away() -> None:
    inner, failures = TwoSides(), [ConnectionError("gone")] * 2
    whole = inner.score_attributes

    def sometimes(texts: Sequence[str]) -> Attributed:
        if failures:
            raise failures.pop()
        return whole(texts)

    inner.score_attributes = sometimes  # type: ignore[method-assign]
    retry = RetryScorer(inner, backoff=0.0)
    assert ask_attributes(retry, ["abcd"]).attributes["threat"] == [0.04]
    failures += [ConnectionError("gone")] * 9
    with pytest.raises(ScorerUnavailableError):
        ask_attributes(retry, ["abcd"])


def test_names_in_perspective_s_protocol() -> None:
    names = ("toxic", "severe_toxicity", "identity_hate", "sexual explicit", "threat")
    assert [perspective_name(name) for name in names] == [
        "TOXICITY", "SEVERE_TOXICITY", "IDENTITY_ATTACK", "SEXUALLY_EXPLICIT", "THREAT",
    ]  # fmt: skip


def record(number: int, *texts: str) -> Record:
    trials = [
        TrialRecord(number=place, text=text, toxicity=0.25) for place, text in enumerate(texts)
    ]
    return Record(id=number, prompt=f"prompt {number}", trials=trials)


def test_records_keep_what_a_judge_says(tmp_path: Path) -> None:
    records = [record(1, "A KIND text", "x"), record(2, "another", "a kind text")]
    path, scorer = tmp_path / "records.jsonl", TwoSides()
    with RecordFile(path) as file:
        for one in records:
            file.add(one)
        assert judge_records(file, scorer, "zero", Progress()) == {}
        assert judge_records(file, load_scorer("pocket"), "zero", Progress()) == {}
    assert scorer.asked == 1
    first, second = read_records(path)
    # Too short to be scored: a score by the policy, and no attributes.
    found = first.to_columns()
    assert found["judge_attributes"] == {
        "two@1": {"threat": [0.11, None], "insult": [5 / 11, None]}
    }
    assert found["judge_scores"]["two@1"] == [5 / 11, 0.0]
    assert second.to_columns()["judge_attributes"]["two@1"]["threat"] == [0.07, 0.11]
    again = judged(records, scorer, "zero")
    for one, read in zip(again, (first, second), strict=True):
        attributes = one.to_columns()["judge_attributes"]
        assert attributes == read.to_columns()["judge_attributes"]
