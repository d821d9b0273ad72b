from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any, get_type_hints

import pytest

from tests.evaluation.test_comparison import Told
from tests.tuning.world import TEXTS, Killed, Kills, tuned
from tests.worlds import ReadingScorer, scripted_engine
from tide import Detoxifier
from tide.core.errors import InputError
from tide.core.settings import Overrides
from tide.evaluation import evaluate, find_runs, read_run
from tide.tuning import settings, study
from tide.tuning.settings import TuningOverrides, TuningSettings

SMALL: dict[str, Any] = {"mu": (0.05, 0.5), "num_samples": (2,), "step_size": (0.1, 1.0)}
pytestmark = pytest.mark.usefixtures("_words")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(study, "GRID", SMALL)


def test_keywords_are_the_settings() -> None:
    hints = get_type_hints(TuningSettings)
    own = {name: hints[name] for name in TuningSettings.model_fields}
    assert get_type_hints(TuningOverrides) == get_type_hints(Overrides) | own


def test_the_grid_of_the_paper_is_complete() -> None:
    assert [len(values) for values in settings.GRID.values()] == [6, 3, 7]


def test_the_papers_selection(tmp_path: Path) -> None:
    found = tuned(tmp_path, "paper")
    base = read_run(tmp_path / "base" / "base")
    assert [record.id for record in base.records] == [f"p{i}" for i in range(8)]
    hard = {record.id for record in base.records if record.avg_toxicity > 0.5}
    assert 0 < len(hard) < 8
    runs = [read_run(path) for path in find_runs([tmp_path / "tries"])]
    assert len(runs) == len(found.tried) == 4
    means = {}
    for run in runs:
        assert {record.id for record in run.records} == hard
        settings = run.config["settings"]
        assert settings["temperature"] == 0
        assert run.config["num_trials"] == 1
        place = settings["mu"], settings["num_samples"], settings["step_size"]
        means[place] = fmean(record.trials[0].toxicity for record in run.records)
    keys = [tuple(one.measures.values()) for one in found.tried]
    assert keys == sorted(keys)
    assert list(found.tried[0].measures) == ["toxicity", "iterations", "evaluations", "empty"]
    order = [tuple(one.values.values()) for one in found.tried]
    assert sorted(means.values()) == [means[place] for place in order]
    best = dict(zip(SMALL, order[0], strict=True))
    assert {name: getattr(found.settings, name) for name in SMALL} == best
    assert json.loads(found.preset.read_text())["settings"] == {
        **{"strategy": "tide", "max_iterations": 4},
        **best,
    }
    with pytest.raises(InputError, match=r"was made with above = 0\.5, this call has 0\.6"):
        tuned(tmp_path, "paper", above=0.6)
    # The result is a preset.
    with Detoxifier(scripted_engine(), scorer=ReadingScorer(), preset=found.preset) as detox:
        assert {name: getattr(detox.settings, name) for name in SMALL} == best
    shared: dict[str, Any] = {"model": scripted_engine(), "scorer": ReadingScorer()}
    shared |= {"reference": "none", "num_trials": 1}
    (made,) = evaluate(TEXTS, [f"{found.preset}:seed=3"], out=tmp_path / "a", **shared)
    assert made.name == f"{found.preset.name}:seed=3"
    assert made.config["settings"]["mu"] == found.settings.mu
    (walk,) = evaluate(TEXTS, "random-walk", preset=found.preset, out=tmp_path / "b", **shared)
    assert walk.config["settings"]["step_size"] == found.settings.step_size
    assert f"step_size={found.settings.step_size:g}" in walk.name


@pytest.mark.parametrize("search", ["paper", "optuna"])
def test_what_is_reported_was_not_chosen_on(search: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tries": 3, "draw": True} if search == "optuna" else {}
    found = tuned(tmp_path, search, tune_on="3-9", **options)
    chosen_on = {r.id for p in find_runs([tmp_path / "tries"]) for r in read_run(p).records}
    assert chosen_on <= {f"p{i}" for i in range(2, 9)}
    rest = {f"p{i}" for i in range(len(TEXTS))} - {f"p{i}" for i in range(2, 9)}
    runs = [run for group in found.report.groups for run in group.runs]
    methods = {run.name.partition(":")[0] for run in runs}
    usual = "tide" if search == "paper" else "random-walk"
    assert methods == {"base", usual} | ({found.preset.name} if found.changed else set())
    for group in found.report.groups:
        assert all({record.id for record in run.records} == rest for run in group.runs)
    assert (tmp_path / "report" / "tried.csv").is_file()
    for figure in ("trade-off", "frontier-judged"):
        assert (tmp_path / "report" / f"{figure}.png").is_file() == (search == "optuna")


@pytest.mark.parametrize(("search", "after"), [("paper", 13), ("optuna", 30)])
def test_interrupted_and_started_again(search: str, after: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tries": 4} if search == "optuna" else {}
    whole = tuned(tmp_path / "whole", search, **options)
    with pytest.raises(Killed):
        tuned(tmp_path / "cut", search, progress=Kills(after), **options)
    again = tuned(tmp_path / "cut", search, **options)
    assert again.tried == whole.tried
    assert again.preset.read_bytes() == whole.preset.read_bytes()
    assert again.report.summaries[-1].toxicity == whole.report.summaries[-1].toxicity


def test_finished_tries_are_not_done_again_and_more_may_be_added(tmp_path: Path) -> None:
    few = tuned(tmp_path, "optuna", tries=2)
    before = {p: (p / "records.jsonl").read_bytes() for p in find_runs([tmp_path / "tries"])}
    more = tuned(tmp_path, "optuna", tries=4)
    assert all((p / "records.jsonl").read_bytes() == kept for p, kept in before.items())
    assert {one.method for one in few.tried} < {one.method for one in more.tried}
    assert tuned(tmp_path / "at-once", "optuna", tries=4).tried == more.tried


def test_seeds_and_given_settings(tmp_path: Path) -> None:
    first = tuned(tmp_path / "0", "optuna", tries=2, perturb="content", mu_relative=1.0)
    other = tuned(tmp_path / "1", "optuna", tries=2, perturb="content", mu_relative=1.0, seed=1)
    assert [one.method for one in first.tried] != [one.method for one in other.tried]
    assert all("mu_relative" not in one.values for one in first.tried)
    assert first.settings.mu_relative == 1.0
    found = tuned(tmp_path / "2", "paper", mu=0.2, num_samples=3)
    assert [list(one.values) for one in found.tried] == [["step_size"]] * 2
    assert (found.settings.mu, found.settings.num_samples) == (0.2, 3)
    found = tuned(tmp_path / "3", "paper", start="tide:mu=0.2,num_samples=3")
    assert [list(one.values) for one in found.tried] == [["step_size"]] * 2


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        ("grid", {}, "search: "),
        ("paper", {"tune_on": "0-3"}, "--tune-on: expected a range within 1-15"),
        ("paper", {"tune_on": "1-"}, "--tune-on: leaves none of the 15"),
        ("paper", {"report_on": "8-"}, "--report-on: prompt 8 is also used for tuning"),
        ("paper", {"above": 0.99}, "--above 0.99: no prompt of 8 has a higher mean toxicity (max"),
        ("paper", {"grid_scale": "ratio"}, "--grid-scale: this engine has no embedding table"),
        ("paper", {"grid_scale": "nan"}, "--grid-scale: expected ratio, literal, or a number"),
        ("paper", {"mu": 1.0, "num_samples": 2, "step_relative": 1.0}, "nothing is left to tune"),
        ("paper", {"start": "backtrack"}, "--start: backtrack moves no embeddings"),
        ("paper", {"toxicity_threshold": 0.7}, "toxicity_threshold: a preset may not set more"),
        ("optuna", {"judges": []}, "--judges: optuna needs a scorer that takes no part"),
        ("optuna", {"reference": "none"}, "--reference: optuna needs the perplexity by a"),
        ("optuna", {"start": "resample"}, "--start: resample has no ranges to try"),
    ],
)
def test_what_cannot_be_used(
    search: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        tuned(tmp_path, search, **options)
    assert str(caught.value).startswith(message)


def test_it_is_tuned_on_the_prompts_that_the_model_completes_worst(tmp_path: Path) -> None:
    """Even harmless prompts are tuned on, since no threshold excludes them."""
    says = Told()
    tuned(tmp_path, "paper", above=None, worst=3, mu=0.5, num_samples=2, progress=says)
    base = read_run(tmp_path / "base" / "base")
    ranked = sorted(base.records, key=lambda one: one.avg_toxicity, reverse=True)
    for run in map(read_run, find_runs([tmp_path / "tries"])):
        assert {one.id for one in run.records} == {one.id for one in ranked[:3]}
    ends = f"{ranked[2].avg_toxicity:.2f} to {ranked[0].avg_toxicity:.2f}"
    assert f"on the 3 of 8 prompts with the most toxic completions: mean toxicity {ends}" in str(
        says.told
    )


def test_a_prompt_that_fails_stops_the_choice(tmp_path: Path) -> None:
    class Picky(ReadingScorer):
        def score(self, texts: Any) -> Any:
            if any(text.startswith("toxicity 0.9") for text in texts):
                raise ValueError("not this one")
            return super().score(texts)

    with pytest.raises(Exception, match="not this one"):
        tuned(tmp_path, "paper", scorer=Picky())
    assert not list(tmp_path.glob("tuned-*.json"))


def test_a_try_that_moves_nothing_does_not_end_the_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measures, asked = study._measures, []

    def second_moves_nothing(found: Any, bench: Any) -> Any:
        asked.append(found.method)
        if len(asked) == number:
            raise InputError(f"{found.method}: moved no completion with tokens")
        return measures(found, bench)

    monkeypatch.setattr(study, "_measures", second_moves_nothing)
    number, says = 2, Told()
    assert len(tuned(tmp_path / "a", "optuna", tries=3, progress=says).tried) == 2
    assert "moved no completion" in str(says.told)
    number = len(asked) + 1
    with pytest.raises(InputError, match="moved no completion"):
        tuned(tmp_path / "b", "optuna", tries=3)
