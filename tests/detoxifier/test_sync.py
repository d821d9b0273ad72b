from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import tide
from tests.scripted_engine import ScriptedEngine
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide.core.errors import (
    EngineError,
    InputError,
    MissingDependencyError,
    TideError,
    UnresolvedError,
)
from tide.core.results import Result, format_score
from tide.detoxifier.ray import map_prompts
from tide.detoxifier.sync import Detoxifier
from tide.engines import REGISTRY as ENGINES
from tide.scorers import REGISTRY as SCORERS
from tide.search.tide import TideStrategy


def detoxifier(max_batch: int = 16, **overrides: Any) -> Detoxifier:
    """The paper's search, whose evaluations these tests count."""
    engine = scripted_engine(max_batch=max_batch)
    return Detoxifier(engine, scorer=ReadingScorer(), **{"preset": "relative", **overrides})


@pytest.fixture(scope="module")
def alone() -> list[Result]:
    """The results of prompts that run alone."""
    return [detoxifier(num_trials=2)(prompt) for prompt in PROMPTS]


def test_prompts_are_detoxified(alone: list[Result]) -> None:
    trials = [trial for result in alone for trial in result.trials]
    assert np.mean([trial.base.toxicity >= 0.5 for trial in trials]) >= 0.4
    assert all(result.accepted for result in alone)
    for trial in trials:
        assert trial.toxicity < 0.5
        assert trial.text == f"toxicity {trial.toxicity:.6f}"
        assert (trial.trace[0].role, trial.trace[0].displacement) == ("initial", 0.0)
        steps = sum(e.role == "iterate" for e in trial.trace)
        assert trial.iterations == 1 + steps
        assert trial.evaluations == 1 + steps * (1 + 8)
        assert trial.rounds == 1 + 2 * steps
        assert trial.generated_tokens == 2 * trial.evaluations
        assert trial.scorer_calls == len({(e.round, e.text) for e in trial.trace})
        assert [e.round for e in trial.trace] == sorted(e.round for e in trial.trace)


def test_seeds_differ_by_prompt_trial_and_seed(alone: list[Result]) -> None:
    seeds = [trial.seed for result in alone for trial in result.trials]
    assert len(set(seeds)) == len(seeds)
    other = detoxifier(seed=1)(PROMPTS[0])
    assert other.trials[0].seed not in seeds
    assert alone[0].trials[0] == detoxifier(num_trials=1)(PROMPTS[0]).trials[0]


def test_prompts_are_taken_as_they_are_needed() -> None:
    taken = []

    def prompts() -> Any:
        for i in range(1000):
            taken.append(i)
            yield f"prompt number {i}"

    results = detoxifier(max_batch=4).map(prompts())
    next(results)
    assert len(taken) < 200


@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_takes_the_place_of_the_result_where_asked_for(ordered: bool) -> None:
    prompts = [PROMPTS[0], "", PROMPTS[1]]
    outcomes = list(detoxifier().map(prompts, return_exceptions=True, ordered=ordered))
    (error,) = (outcome for outcome in outcomes if not isinstance(outcome, Result))
    assert isinstance(error, InputError)
    assert str(error).startswith("prompt 1: ")
    results = [outcome for outcome in outcomes if isinstance(outcome, Result)]
    assert sorted(outcome.prompt for outcome in results) == sorted([PROMPTS[0], PROMPTS[1]])
    if ordered:
        assert outcomes.index(error) == 1
    with pytest.raises(InputError, match=r"^prompt 1: "):
        list(detoxifier().map(prompts))


def test_device_dtype_and_max_batch_are_keywords() -> None:
    with Detoxifier(device="cpu", dtype="bfloat16", max_batch=5) as detox:
        assert (detox.engine.dtype, detox.engine.max_batch) == (torch.bfloat16, 5)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"model": None}, r"^model: expected a name, .* got NoneType$"),
        ({"model": 3}, r"^model: expected a name, .* got int$"),
        ({"settings": {"seed": 1}}, r"^settings: expected tide.Settings"),
        ({"model": scripted_engine(), "max_batch": 3}, r"^max_batch: give it to load_engine"),
        ({"engine_options": {"base_url": "http://a"}}, "base_url: .* add --engine openai"),
        ({"engine": "openai", "device": "cuda"}, "engine 'openai' has no option 'device'"),
    ],
)
def test_constructor_names_a_wrong_argument(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Detoxifier(**keywords)


# Nothing accepted

STUBBORN: dict[str, Any] = {"toxicity_threshold": 1e-6, "max_iterations": 2, "num_samples": 2}


def test_on_unresolved() -> None:
    best, refused = (
        detoxifier(**STUBBORN, on_unresolved=what)(PROMPTS[0]).best for what in ("best", "refuse")
    )
    assert best.toxicity == min(evaluation.toxicity for evaluation in best.trace)
    assert (best.accepted, best.text) == (False, best.returned.text)
    assert (refused.text, refused.refused, refused.accepted) == ("", True, False)
    with pytest.raises(UnresolvedError, match=r"^prompt 0: no text below"):
        list(detoxifier(**STUBBORN, on_unresolved="raise").map(PROMPTS[:1]))


def test_unaccepted_result_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    detox = detoxifier(**STUBBORN)
    list(detox.map(PROMPTS))
    detox(PROMPTS[0])
    assert [record.message[:30] for record in caplog.records] == ["a completion is returned altho"]
    caplog.clear()
    detoxifier(**STUBBORN)(PROMPTS[0], on_unresolved="refuse")
    detoxifier()(PROMPTS[0])
    assert not caplog.records


# Settings for one call


def test_a_call_can_have_settings_of_its_own() -> None:
    other = detoxifier(seed=3, strategy="random-walk", step_relative=0.3)(PROMPTS[0])
    detox = detoxifier()
    assert detox(PROMPTS[0], seed=3, strategy="random-walk", step_relative=0.3) == other
    assert list(detox.map(PROMPTS[:1], seed=3, strategy="random-walk", step_relative=0.3)) == [
        other
    ]
    assert detox(PROMPTS[0]) == detoxifier()(PROMPTS[0])


def test_strategy_class_that_no_spec_names_keeps_its_place_in_a_call_with_settings() -> None:
    class Local(TideStrategy):
        """As in a function of a notebook."""

    detox = detoxifier(strategy=Local)
    assert detox(PROMPTS[0], seed=3) == detoxifier(seed=3)(PROMPTS[0])


# Output for people


def test_a_result_is_one_short_line(alone: list[Result]) -> None:
    assert repr(alone[0]) == str(alone[0])
    assert repr(alone[0]).startswith("Result(accepted, toxicity 0.")
    stubborn = detoxifier(**STUBBORN)(PROMPTS[0])
    assert repr(stubborn).startswith("Result(not accepted, toxicity 0.")
    assert "'t******* 0" in repr(stubborn)
    assert all(len(repr(result)) < 120 for result in (*alone, stubborn))


def test_score_is_shown_on_its_side_of_the_threshold() -> None:
    assert format_score(0.096, True) == "0.09"
    assert format_score(0.5001, False) == "0.51"
    assert [format_score(score, True) for score in (0.0, 0.29, 1e-300)] == ["0.00", "0.29", "0.00"]
    assert [format_score(score, False) for score in (1.0, 0.57)] == ["1.00", "0.57"]
    assert format_score(0.49999, True, digits=3) == "0.499"


def test_close_frees_an_engine_and_a_scorer_that_it_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORERS._targets, "loaded", ReadingScorer)
    with Detoxifier(scorer="loaded") as detox:
        assert detox(PROMPTS[0]).prompt == PROMPTS[0]
    assert detox.engine.closed
    assert detox.scorer.closed  # type: ignore[attr-defined]


@pytest.mark.parametrize("fails", ["loading", "checking"])
def test_constructor_that_raises_closes_what_it_loaded(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, scorer = scripted_engine(), ReadingScorer()

    def load(model: str) -> ScriptedEngine:
        if fails == "loading":
            raise EngineError("cannot be loaded")
        return engine

    monkeypatch.setitem(SCORERS._targets, "loaded", lambda: scorer)
    monkeypatch.setitem(ENGINES._targets, "loaded", load)
    with pytest.raises(TideError, match=r"cannot be loaded|repetition_penalty: not supported"):
        Detoxifier("some-model", scorer="loaded", engine="loaded", repetition_penalty=1.2)
    assert scorer.closed
    assert engine.closed is (fails == "checking")


def test_public_names_exist_and_load_no_torch() -> None:
    assert all(getattr(tide, name) is not None for name in tide.__all__)
    with pytest.raises(AttributeError, match="no_such"):
        tide.no_such  # noqa: B018
    for what in ("tide; dir(tide)", "tide.cli.app"):
        code = f"import sys, {what}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, what


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[ray\]'"):
        next(map_prompts(Detoxifier, ["a prompt"]))
