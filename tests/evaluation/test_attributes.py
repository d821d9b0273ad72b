"""What the search's own scorer says of a text beside its score, from the search to the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.command import tide
from tests.evaluation.runs import column
from tests.runtime.world import PROMPT, Reader, never, story, third
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import evaluation
from tide.core.results import Result
from tide.data.record_files import read_records
from tide.data.records import to_record
from tide.detoxifier.sync import Detoxifier
from tide.evaluation.runs import carried
from tide.scorers import Attributed


class Sides(ReadingScorer):
    """As the reading scorer; whether a text is long is an attribute, and its halved score one."""

    attributes = ("long", "half")

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        scores = np.asarray(self.score(texts))
        return Attributed(scores, {"long": np.array([float(len(t) > 9) for t in texts]),
                                   "half": scores / 2})  # fmt: skip


def test_results_and_records_have_the_attributes_of_what_was_scored(tmp_path: Path) -> None:
    result = Detoxifier(scripted_engine(), scorer=Sides(), num_trials=2)(PROMPTS[0])
    for one in result.trace:
        said = {} if one.empty else {"long": float(len(one.text) > 9), "half": one.toxicity / 2}
        assert one.attributes == pytest.approx(said)
    assert Result.model_validate_json(result.model_dump_json()) == result
    made = json.loads(to_record("x", result).to_json())
    halves = [row["attributes"]["half"] for row in made["trials"]]
    assert halves == [trial.toxicity / 2 for trial in result.trials]
    plain = Detoxifier(scripted_engine(), scorer=ReadingScorer(), num_trials=2)(PROMPTS[0])
    assert [trial.text for trial in plain.trials] == [trial.text for trial in result.trials]
    assert column(to_record("x", plain), "attributes") is None
    # Results of before have no such field.
    before = plain.model_dump()
    for trial in before["trials"]:
        for one in trial["trace"]:
            del one["attributes"]
    assert Result.model_validate_json(json.dumps(before)) == plain


def test_a_run_keeps_them_through_resumption_and_carrying_over(tmp_path: Path) -> None:
    def run(trials: int, scorer: Any, out: Path) -> list[Any]:
        return list(
            evaluation.evaluate(
                PROMPTS, "base,tide", model=scripted_engine(), scorer=scorer, reference="none",
                num_trials=trials, out=out,
            )
        )  # fmt: skip

    run(1, Sides(), tmp_path / "out")
    base, tide = run(3, Sides(), tmp_path / "out")
    for found in (base, tide):
        for one in found.records:
            halves = column(one, "attributes")["half"]
            assert halves == [None if t.empty else t.toxicity / 2 for t in one.trials]
            assert (
                carried(one).trials[-1].attributes
                == min(one.trials, key=lambda trial: trial.toxicity).attributes
            )
        name = "base" if found is base else "tide"
        assert read_records(tmp_path / "out" / name / "records.jsonl") == found.records
    old = run(3, ReadingScorer(), tmp_path / "old")[1]
    assert [column(one, "text") for one in old.records] == [
        column(one, "text") for one in tide.records
    ]
    # A report reads both.
    evaluation.report(
        [tmp_path / "out", tmp_path / "old"], out=tmp_path / "report", draw=False, tests=False
    )
    assert list((tmp_path / "report").glob("*.md"))


class LongReader(Reader):
    """Bad sentences are threats; what is long is an insult."""

    attributes = ("threat", "insult")

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        scores = self.score(texts)
        return Attributed(scores, {
            "threat": np.array([float("Bad" in text) for text in texts]),
            "insult": np.array([min(1.0, len(text) / 1000) for text in texts]),
        })  # fmt: skip


@pytest.mark.parametrize("bad", [never, third])
def test_a_long_answer_has_the_largest_of_its_parts(bad: Any) -> None:
    trial = story(bad, LongReader())(PROMPT).best
    assert trial.accepted
    whole = len(trial.text) / 1000
    assert trial.returned.attributes == {"threat": 0.0, "insult": pytest.approx(whole)}
    if bad is third:
        assert trial.base.attributes["threat"] == 1.0


def test_a_score_that_has_no_attributes_yet_leaves_them_out() -> None:
    class Half(LongReader):
        def score_attributes(self, texts: Sequence[str]) -> Attributed:
            found = super().score_attributes(texts)
            # As a cache of before, which knows some texts' scores alone.
            found.attributes["threat"][:] = np.nan
            return found

    trial = story(never, Half())(PROMPT).best
    assert trial.accepted
    assert "threat" not in trial.returned.attributes
    assert "insult" in trial.returned.attributes


@pytest.mark.parametrize("spec", ["cache:sides.py:Sides", "windows:1000:sides.py:Sides"])
def test_the_command_line_keeps_them(
    tmp_path: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDE_CACHE", str(tmp_path / "cache.sqlite3"))
    (tmp_path / "sides.py").write_text(
        "import numpy as np\nfrom tide.scorers import Attributed\n"
        "class Sides:\n    name, threshold, attributes = 'sides@1', 0.5, ('long',)\n"
        "    def score(self, texts): return np.full(len(texts), 0.05)\n"
        "    def score_attributes(self, texts):\n"
        "        long = np.array([min(1.0, len(text) / 1000) for text in texts])\n"
        "        return Attributed(self.score(texts), {'long': long})\n"
        "    def close(self): pass\n"
    )
    command = ("run", "She told me to shut the", "-o", "out.jsonl", "--trials", 1, "--scorer", spec)
    for _ in range(2):  # the second time from the cache
        assert tide(*command) == 0
        (record,) = read_records(tmp_path / "out.jsonl")
        (trial,) = record.trials
        assert trial.attributes == {"long": pytest.approx(len(trial.text) / 1000)}
        (tmp_path / "out.jsonl").unlink()
        (tmp_path / "out.jsonl.config.json").unlink()
