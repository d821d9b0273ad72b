from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.runs import column, to_columns
from tests.models import save_classifier
from tests.scorers.wrappers.stand_ins import TwoSides
from tide.core.errors import InputError, ScorerError
from tide.data.record_files import RecordFile, read_records
from tide.data.records import Record, TrialRecord
from tide.evaluation.judges import judge_records, judged
from tide.evaluation.progress import Progress
from tide.scorers import load_scorer, score_texts
from tide.scorers.base import Attributed, ask_attributes, attributes_of
from tide.scorers.wrappers.base import MaxScorer, MeanScorer, WindowedScorer
from tide.scorers.wrappers.cache import CachedScorer
from tide.scorers.wrappers.calibration import CalibratedScorer, fit
from tide.server.scoring import perspective_name

LABELS = ["toxic", "identity_hate", "other"]
TEXTS = ["The weather is fine", "Rain", "the people are kind " * 3]


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
        (Attributed(np.array([0.5]), {"threat": np.array([0.1])}), "lacks attributes"),
        ([0.5], "lacks attributes"),
        (Attributed(np.array([1.5]), {n: np.array([0.1]) for n in TwoSides.attributes}), "1.5"),
        (
            Attributed(np.array([0.5]), dict.fromkeys(TwoSides.attributes, np.array([np.inf]))),
            r"\(threat\): inf",
        ),
        (Attributed(np.array([0.5]), dict.fromkeys(TwoSides.attributes, np.zeros(2))), "1 texts"),
    ],
)
def test_what_is_no_attribute_is_an_error(answer: Any, message: str) -> None:
    scorer = TwoSides()
    scorer.score_attributes = lambda texts: answer  # type: ignore[method-assign]
    with pytest.raises(ScorerError, match=message):
        ask_attributes(scorer, ["a text"])
    with pytest.raises(ScorerError, match=message):
        score_texts(scorer, ["a text"], "zero")


def test_a_scorer_without_attributes_has_scores_alone() -> None:
    pocket = load_scorer("pocket")
    found = ask_attributes(pocket, TEXTS)
    assert found.values.tolist() == pocket.score(TEXTS).tolist()
    assert found.attributes == {}


def test_an_attribute_may_be_unknown_and_a_score_may_not() -> None:
    scorer = TwoSides()
    unknown = {"threat": np.array([0.5]), "insult": np.array([np.nan])}
    scorer.score_attributes = lambda texts: Attributed(np.array([0.5]), unknown)  # type: ignore[method-assign]
    assert score_texts(scorer, ["a text"], "zero").known(0) == {"threat": 0.5}
    scorer.score_attributes = lambda texts: Attributed(np.array([np.nan]), unknown)  # type: ignore[method-assign]
    with pytest.raises(ScorerError, match="nan is not a score"):
        ask_attributes(scorer, ["a text"])


def test_what_stands_around_a_scorer_keeps_its_attributes(tmp_path: Path) -> None:
    inner = TwoSides()
    guards = (CachedScorer(inner, tmp_path / "scores.sqlite3"), WindowedScorer(inner))
    expected = inner.score_attributes(TEXTS)
    for guard in guards:
        assert attributes_of(guard) == inner.attributes
        found = ask_attributes(guard, TEXTS)
        assert found.values == pytest.approx(expected.values)
        for name in inner.attributes:
            assert found.attributes[name] == pytest.approx(expected.attributes[name])
        assert guard.score(TEXTS) == pytest.approx(expected.values)
        assert ask_attributes(guard, []).attributes["threat"].shape == (0,)
    assert attributes_of(load_scorer("windows:9:pocket")) == ()


def test_the_worst_window_s_attributes_count() -> None:
    scorer = WindowedScorer(TwoSides(), 2)
    text = "aaaa BBBB cccc dddddddddddddd ee"
    # Windows: "aaaa BBBB", "BBBB cccc", "cccc ddd...", "ddd... ee"
    found = ask_attributes(scorer, [text, "ok"])
    assert found.attributes["threat"] == pytest.approx([0.19, 0.02])
    assert found.attributes["insult"] == pytest.approx([4 / 9, 0.0])
    assert found.values == pytest.approx([4 / 9, 0.02])
    # A window of marks alone is empty, and no attribute of the others is lost by it.
    assert ask_attributes(scorer, ["AB . . CD"]).attributes["insult"] == pytest.approx([0.5])


def test_a_calibration_maps_the_score_and_leaves_the_attributes(tmp_path: Path) -> None:
    inner = TwoSides()
    raw = inner.score_attributes(TEXTS)
    path = tmp_path / "calibration.json"
    fitted = fit("two", inner.name, "labels", raw.values, np.array([0.9, 0.9, 0.1]))
    path.write_text(fitted.model_dump_json())
    found = ask_attributes(CalibratedScorer(path, inner), TEXTS)
    assert found.values == pytest.approx(fitted(raw.values))
    assert found.attributes["threat"] == pytest.approx(raw.attributes["threat"])


def test_exclusive_labels_are_added_up_or_the_largest_is_taken(tmp_path: Path) -> None:
    folder = save_classifier(tmp_path, ["neutral", "hate", "offensive"])
    found = ask_attributes(load_scorer(f"hf:{folder}"), TEXTS)
    both = [found.attributes[label] for label in ("hate", "offensive")]
    for spec in ("#max:hate,offensive", "#max:"):
        largest = load_scorer(f"hf:{folder}{spec}")
        assert largest.score(TEXTS) == pytest.approx(np.max(both, axis=0))
        assert largest.name.endswith("#max:hate,offensive")
    added = load_scorer(f"hf:{folder}#sum:hate,offensive")
    assert added.score(TEXTS) == pytest.approx(np.sum(both, axis=0))
    assert added.name == load_scorer(f"hf:{folder}#hate,offensive").name
    joined = load_scorer(f"max:(hf:{folder}#max:hate,offensive),pocket")
    pocket = load_scorer("pocket").score(TEXTS)
    assert joined.score(TEXTS) == pytest.approx(np.max([*both, pocket], axis=0))
    (tmp_path / "many").mkdir()
    many = save_classifier(tmp_path / "many", LABELS, problem_type="multi_label_classification")
    with pytest.raises(InputError, match="not exclusive and have no sum; leave out 'sum:'"):
        load_scorer(f"hf:{many}#sum:toxic,other")
    assert load_scorer(f"hf:{many}#max:toxic").name == load_scorer(f"hf:{many}#toxic").name


def test_an_ensemble_joins_the_attributes_of_those_that_have_them() -> None:
    one, other = TwoSides(), TwoSides()
    other.attributes = ("threat",)
    half = Attributed(np.full(3, 0.5), {"threat": np.array([0.5, 0.0, np.nan])})
    other.score_attributes = lambda texts: half  # type: ignore[method-assign]
    pocket = load_scorer("pocket")
    raw = one.score_attributes(TEXTS)
    most = ask_attributes(MaxScorer([pocket, one, other]), TEXTS)
    assert list(most.attributes) == ["threat", "insult"]
    assert most.values == pytest.approx(np.maximum(raw.values, 0.5))
    assert most.attributes["threat"][:2] == pytest.approx([0.5, raw.attributes["threat"][1]])
    assert np.isnan(most.attributes["threat"][2])  # it may be higher than what is known
    assert most.attributes["insult"] == pytest.approx(raw.attributes["insult"])
    mean = ask_attributes(MeanScorer([one, other]), TEXTS)
    assert mean.attributes["threat"][1] == pytest.approx(raw.attributes["threat"][1] / 2)


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
    found = to_columns(first)
    assert found["judge_attributes"] == {
        "two@1": {"threat": [0.11, None], "insult": [5 / 11, None]}
    }
    assert found["judge_scores"]["two@1"] == [5 / 11, 0.0]
    assert column(second, "judge_attributes")["two@1"]["threat"] == [0.07, 0.11]
    for one, read in zip(records, (first, second), strict=True):
        again = judged(one, scorer, "zero")
        assert column(again, "judge_attributes") == column(read, "judge_attributes")
