from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from torch import Tensor

from tests.evaluation.runs import column
from tests.fakes import FakeScorer
from tests.scripted_engine import ScriptedEngine
from tests.worlds import PROMPTS, ReadingScorer, read, scripted_engine
from tide.core.errors import CompletionError, InputError, ScorerError, TideError
from tide.data.records import Likelihood, read_records
from tide.data.texts import Row
from tide.evaluation import Benchmark, Progress, Run, evaluate, judge, read_run
from tide.evaluation import experiment as evaluating
from tide.evaluation.judging import Reference
from tide.evaluation.metrics import summarize
from tide.evaluation.runs import find_runs
from tide.pocket import FOLDERS

ROWS = [Row(i, prompt, "odd" if i % 2 else "even") for i, prompt in enumerate(PROMPTS)]


def half_judge(name: str = "kind") -> FakeScorer:
    """Scores half as high as the search's scorer."""
    return FakeScorer(lambda text: read([text])[0] / 2, name=name)


def engine_named(name: str) -> ScriptedEngine:
    engine = scripted_engine()
    engine.name = name
    return engine


class WordCount:
    """A reference that finds every word of a completion equally likely."""

    measured: ClassVar[list[str]] = []
    check: ClassVar = Mock()

    def __init__(self, name: str, **options: Any) -> None:
        self.name = name

    def measure(self, pairs: Any) -> list[Likelihood]:
        self.measured.extend(self.name for _ in pairs)
        return [Likelihood(nll=1.5, num_tokens=len(completion.split())) for _, completion in pairs]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def word_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluating, "Reference", WordCount)
    monkeypatch.setattr(WordCount, "measured", [])


def run(out: Path, spec: str = "tide", rows: list[Row] = ROWS, **options: Any) -> Run:
    """Evaluate one method with texts that contain their own toxicity."""
    usual = {"model": scripted_engine(), "scorer": ReadingScorer(), "reference": "none"}
    benchmark = Benchmark("mine", "mine.jsonl", rows)
    (evaluated,) = evaluate(benchmark, [spec], out=out, **(usual | options))
    return evaluated


def timeless(path: Path) -> list[dict[str, Any]]:
    """The records of a run, in order, without fields that differ between equal runs."""
    records = read_records(path / "records.jsonl", path / "scores.jsonl")
    return [record.model_dump(exclude={"trials": {"__all__": {"seconds"}}}) for record in records]


def test_evaluate_writes_a_run_folder(tmp_path: Path) -> None:
    evaluated = run(tmp_path, judges=half_judge(), reference="words")
    read_again = read_run(tmp_path / "tide")
    assert read_again == evaluated
    assert (evaluated.name, evaluated.config["model"], evaluated.failed) == ("tide", "scripted", {})
    scorer, (its_judge,) = evaluated.config["scorer"], evaluated.config["judges"]
    assert scorer == {"spec": None, "name": "reading", "code": scorer["code"]}
    assert its_judge == {"spec": None, "name": "kind", "code": its_judge["code"]}
    assert evaluated.sources == ["reading", "kind"]
    assert (evaluated.references, evaluated.config["num_trials"]) == (["words"], 3)
    assert [record.id for record in evaluated.records] == [row.id for row in ROWS]  # in order
    for record in evaluated.records:
        assert record.group == ("odd" if int(record.id) % 2 else "even")
        # Approximate, since texts contain only six digits of a score.
        for trial in record.trials:
            assert trial.judge_scores["kind"] == pytest.approx(trial.toxicity / 2)
            assert trial.base_judge_scores["kind"] == pytest.approx((trial.base_toxicity or 0) / 2)
            assert trial.perplexity["words"].nll == 1.5
    # The same call again repeats nothing; `test_faults` interrupts calls.
    before = (tmp_path / "tide/records.jsonl").read_bytes()
    engine = scripted_engine()
    run(tmp_path, model=engine)
    assert engine.requests == []
    assert (tmp_path / "tide/records.jsonl").read_bytes() == before


def test_extending_a_run_generates_only_what_is_missing(tmp_path: Path) -> None:
    """By a judge, a reference, prompts and trials, in the order of the notebook."""
    first, second = half_judge("first"), half_judge("second")
    run(tmp_path / "a", rows=ROWS[:2], judges=first, reference="words", num_trials=2)
    sent = len(first.texts)
    engine = scripted_engine()
    run(tmp_path / "a", rows=ROWS[:2], judges=[first, second], num_trials=2, model=engine)
    run(tmp_path / "a", rows=ROWS[:2], reference=["words", "more"], num_trials=2, model=engine)
    assert (engine.requests, len(first.texts)) == ([], sent)
    assert second.texts
    assert WordCount.measured == ["words"] * 4 + ["more"] * 4
    # More prompts, and then more trials: judges and references process only the new texts.
    everything: dict[str, Any] = {"judges": [first, second], "reference": ["words", "more"]}
    run(tmp_path / "a", num_trials=2, **everything)
    before, count = len(first.texts), len(WordCount.measured)
    last = run(tmp_path / "a", num_trials=3, **everything)
    extended = len(first.texts)
    assert len(WordCount.measured) == count + 2 * len(ROWS)
    assert (last.config["num_trials"], last.config["num_prompts"]) == (3, len(ROWS))
    run(tmp_path / "b", num_trials=3, **everything)
    assert 0 < extended - before < len(first.texts) - extended
    assert timeless(tmp_path / "a/tide") == timeless(tmp_path / "b/tide")
    # A later command that names fewer prompts gets these, and the records of the others stay.
    fewer = run(tmp_path / "a", rows=ROWS[:1], num_trials=3)
    assert fewer.records == last.records[:1]
    assert summarize(fewer).missing == 0
    assert read_run(tmp_path / "a/tide") == last


def test_fewer_trials_than_a_run_has(tmp_path: Path) -> None:
    """The methods of a call have equally many, also if others were recorded or begun before."""
    many = run(tmp_path, "base", num_trials=3)
    few = run(tmp_path, "base", num_trials=2)
    assert few.config["num_trials"] == 2
    assert few.records == [record.first(2) for record in many.records]
    assert read_run(tmp_path / "base") == many

    class Stop(Progress):
        def task(self, title: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
            return nullcontext(self._stop)

        def _stop(self, count: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "base", num_trials=5, progress=Stop())
    assert run(tmp_path, "base", num_trials=3).records == many.records


def test_more_trials_that_all_fail_are_refused_with_their_error(tmp_path: Path) -> None:
    def fails(x: Tensor, seed: int) -> str:
        raise CompletionError("the server refused it")

    run(tmp_path, "base", num_trials=1)
    with pytest.raises(InputError, match="all prompts failed; id 0: the server refused it"):
        run(tmp_path, "base", num_trials=2, model=ScriptedEngine(fails))


def test_judge_adds_to_finished_runs(tmp_path: Path) -> None:
    run(tmp_path, "base")
    run(tmp_path, "random-walk", on_unresolved="refuse", max_iterations=1)
    judges = [half_judge("one"), half_judge("two")]
    base, walk = judge(tmp_path, judges=judges, reference="words")
    assert (base.name, walk.name) == ("base", "random-walk:max_iterations=1,on_unresolved=refuse")
    assert find_runs([tmp_path])[1].name == "random-walk-max_iterations=1-on_unresolved=refuse"
    for evaluated in (base, walk):
        assert evaluated.sources == ["reading", "one", "two"]
        assert evaluated.references == ["words"]
        assert all("two" in trial.judge_scores for _, trial in evaluated.trials)
    sent = [len(judge.texts) for judge in judges]
    judge([tmp_path / "base"], judges=judges)
    assert [len(judge.texts) for judge in judges] == sent
    # The judge scores the text that was withheld.
    refused = [trial for _, trial in walk.trials if trial.refused]
    assert refused
    for trial in refused:
        assert trial.text == ""
        assert trial.judge_scores["one"] == pytest.approx(trial.toxicity / 2)


def test_prompt_or_judge_failure_is_of_one_prompt(tmp_path: Path) -> None:
    """An unknown reference is reported before the work, with what to pass instead."""
    bad, progress = run(tmp_path / "x", "base").records[2].trials[1].text, Mock(wraps=Progress())

    def score(text: str) -> float:
        if text == bad:
            raise ValueError("no score")
        return 1.0

    picky = FakeScorer(score, name="kind")
    rows = [*ROWS, Row("none", " ")]
    evaluated = run(tmp_path, "base", rows, judges=picky, reference="auto", progress=progress)
    told = [(name, *arguments[:2]) for name, arguments, _ in progress.mock_calls if arguments]
    assert "see --reference" in told[0][1]
    assert [event for event in told if event[0] in ("task", "failed")] == [
        ("task", "base", 6),
        ("failed", "base", "none"),
        ("task", "judge kind", 5),
        ("failed", "judge kind", 2),
    ]
    assert isinstance(evaluated.failed["none"], InputError)
    assert isinstance(evaluated.failed[2], ScorerError)
    is_judged = [any(column(record, "judge_scores")) for record in evaluated.records]
    assert is_judged == [True, True, False, True, True]
    again = run(tmp_path, "base", judges=half_judge()).records[2]
    assert all(column(again, "judge_scores"))


UNKNOWN_ID = "has record 0 of another input"


@pytest.mark.parametrize(
    ("change", "message", "reached"),
    [
        ({"model": engine_named("other")}, "with model = 'scripted', this run has 'other'", None),
        ({"protocol": "rad"}, "with protocol.name = 'tide', this run has 'rad'", None),
        ({"rows": [Row(0, "something else")]}, "record 0 was made from another prompt", None),
        ({"rows": [Row("a", "other"), Row("b", "file")]}, UNKNOWN_ID, None),
        ({"rows": [*ROWS[2:], Row("b", "other part")]}, UNKNOWN_ID, None),
        # The one id that was reached would fit into the number of the input's.
        ({"rows": [Row("a", "other")]}, UNKNOWN_ID, 1),
    ],
)
def test_resume_refuses_another_configuration(
    tmp_path: Path, change: dict[str, Any], message: str, reached: int | None
) -> None:
    """reached: number of lines that were written before the run was interrupted."""
    run(tmp_path, "base")
    records = tmp_path / "base/records.jsonl"
    before = b"".join(records.read_bytes().splitlines(keepends=True)[:reached])
    records.write_bytes(before)
    with pytest.raises(InputError, match=message + ".*--overwrite"):
        run(tmp_path, "base", **change)
    assert records.read_bytes() == before
    run(tmp_path, "base", **change, overwrite=True)


def test_fewer_prompts_are_run_again_also_if_some_failed(tmp_path: Path) -> None:
    failing = [Row("none", " "), *ROWS]
    run(tmp_path, "base", failing)
    evaluated = run(tmp_path, "base", failing[:2])
    assert [record.id for record in evaluated.records] == [ROWS[0].id]
    assert list(evaluated.failed) == ["none"]


SCORER = """
from tide.scorers.base import PlainScorer
class Mine(PlainScorer):
    name = "mine"
    def score(self, texts):
        return [{value}] * len(texts)
"""
STRATEGY = """
from tide.search.tide import ResampleStrategy
class Mine(ResampleStrategy):
    \"\"\"{value}\"\"\"
"""


def test_resume_refuses_edited_code(tmp_path: Path) -> None:
    """A scorer, a strategy and a judge keep their names when their files are edited."""
    scorer, strategy = tmp_path / "s.py", tmp_path / "st.py"
    own = f"{scorer}:Mine"
    scorer.write_text(SCORER.format(value=0.1))
    strategy.write_text(STRATEGY.format(value="before"))
    run(tmp_path / "a", "base", ROWS[:2], scorer=own)
    run(tmp_path / "b", f"{strategy}:Mine", ROWS[:2])
    run(tmp_path / "c", "base", ROWS[:2], judges=own)
    run(tmp_path / "a", "base", scorer=own)  # more rows, and the same code
    scorer.write_text(SCORER.format(value=0.2))
    strategy.write_text(STRATEGY.format(value="after"))
    with pytest.raises(InputError, match=r"was made with scorer\.code = .*--overwrite"):
        run(tmp_path / "a", "base", scorer=own)
    with pytest.raises(InputError, match=r"was made with strategy_code = .*--overwrite"):
        run(tmp_path / "b", f"{strategy}:Mine")
    for add in (run, lambda out, *_, **more: judge(out, **more)):
        with pytest.raises(InputError, match="has scores by other code of"):
            add(tmp_path / "c", "base", judges=own)
    run(tmp_path / "a", "base", ROWS[:2], scorer=own, overwrite=True)


def test_resume_takes_a_run_of_an_earlier_state(tmp_path: Path) -> None:
    """Its configuration has no digests of TIDE's own code."""
    ours = {"model": "pocket", "scorer": "lexicon", "judges": ["pocket"], "max_iterations": 2}
    before = run(tmp_path, "resample", ROWS[:1], **ours)
    (path,) = tmp_path.glob("*/config.json")
    config = json.loads(path.read_text())
    for part in (config, config["scorer"], *config["judges"]):
        for name in ("code", "engine_code", "strategy_code", "engine_options"):
            part.pop(name, None)
    path.write_text(json.dumps(config))
    again = run(tmp_path, "resample", ROWS[:2], **ours)
    assert again.records[0] == before.records[0]
    assert len(again.records) == 2


def test_resume_refuses_changed_weights(tmp_path: Path) -> None:
    """Size, name and time of the file are the same."""
    folder = shutil.copytree(FOLDERS["pocket"], tmp_path / "model")
    engine = engine_named(str(folder))
    run(tmp_path / "a", "base", ROWS[:2], model=engine)
    run(tmp_path / "a", "base", ROWS[:3], model=engine_named(str(FOLDERS["pocket"])))  # the same
    weights = next(folder.glob("*.safetensors"))
    time, content = weights.stat().st_mtime_ns, bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(time, time))
    with pytest.raises(InputError, match=r"was made with weights = .*--overwrite"):
        run(tmp_path / "a", "base", model=engine)


def test_finding_and_reading_runs(tmp_path: Path) -> None:
    out = tmp_path / "runs/mine-model"
    run(out, "tide")
    run(out, "base")
    expected = [out / "tide", out / "base"]  # in the order of their creation
    assert find_runs([tmp_path / "runs"]) == find_runs([out]) == expected
    assert find_runs([out / "base", out]) == [out / "base", out / "tide"]
    # An extended run keeps its place.
    run(out, "tide", judges=half_judge())
    assert find_runs([out]) == expected
    with pytest.raises(InputError, match=r"is not a run .* and contains no run"):
        find_runs([tmp_path / "none"])
    before = (out / "tide/records.jsonl").read_bytes()
    config = json.loads((out / "tide/config.json").read_text())
    (out / "tide/config.json").write_text(json.dumps(config | {"format": 3}))
    for use in (lambda: read_run(out / "tide"), lambda: run(out)):
        with pytest.raises(InputError, match="of this version of tide; use the version"):
            use()
    assert (out / "tide/records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": "dapt:x=1"}, r"^baseline dapt: no option 'x'"),
        ({"methods": "base,dapt"}, "dexperts: nowhere/dexperts is missing; make it with tide fit"),
        ({"reference": "nowhere/such/model"}, "^model nowhere/such/model: no such folder"),
        ({"reference": "tests"}, r"^--reference tests \('none' measures no perplexity\): "),
    ],
)
def test_wrong_name_is_found_before_loading(
    wrong: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(evaluating, "load_engine")
    monkeypatch.setattr(evaluating, "Reference", Reference)
    with pytest.raises(TideError, match=message):
        evaluate(["a prompt"], **wrong, model="anything", artefacts=Path("nowhere"))


SAME_IDS = Benchmark("mine", "mine.jsonl", [Row(7, "One"), Row(7, "Two")])
LOCAL_CLASS = type("Local", (), {"__qualname__": "f.<locals>.Local"})


@pytest.mark.parametrize(
    ("prompts", "methods", "message"),
    [
        pytest.param([], "base", "^benchmark: holds no prompts", id="no prompts"),
        pytest.param(SAME_IDS, "base", "^benchmark: id 7 occurs twice", id="ids"),
        pytest.param([" "], "base", "base: all prompts failed; id 0: empty", id="empty prompt"),
        pytest.param(PROMPTS, "base,tide:seed=0,tide", "^methods: tide is named twice", id="twice"),
        pytest.param(PROMPTS, [3], "classes of a module", id="number"),
        pytest.param(PROMPTS, [LOCAL_CLASS], "classes of a module", id="local class"),
    ],
)
def test_evaluate_refuses_input_that_cannot_be_used(
    tmp_path: Path, prompts: Any, methods: Any, message: str
) -> None:
    engine, scorer = scripted_engine(), ReadingScorer()
    with pytest.raises(InputError, match=message):
        evaluate(prompts, methods, model=engine, scorer=scorer, reference="none", out=tmp_path)
