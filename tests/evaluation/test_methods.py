from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.evaluation.runs import column
from tests.worlds import PROMPTS, ReadingScorer, scripted_engine
from tide import TideError
from tide.baselines.decoding import DecodingBaseline
from tide.core.errors import CompletionError, EngineError, InputError
from tide.core.settings import Settings
from tide.data.records import Record
from tide.data.texts import Row
from tide.detoxifier.presets import PRESETS
from tide.detoxifier.sync import Detoxifier
from tide.engines.base import Completion
from tide.evaluation.benchmarks import load_protocol
from tide.evaluation.methods import (
    BaselineMethod,
    Method,
    MethodRules,
    check_method,
    load_method,
    method_of,
    run_name,
)
from tide.search import resolve_settings

ROWS = [Row(i, prompt) for i, prompt in enumerate(PROMPTS)]


def loaded(spec: str, protocol: str = "tide", **common: Any) -> Method:
    rules = MethodRules(load_protocol(protocol), common)
    check_method(spec, "scripted", rules)
    return load_method(spec, scripted_engine(), ReadingScorer(), rules)


def test_base_is_the_first_completion_of_a_search() -> None:
    base, tide = (dict(loaded(spec).records(ROWS, range(3))) for spec in ("base", "tide"))
    assert base.keys() == tide.keys() == set(ROWS)
    assert any(record.worst.toxicity >= 0.5 for record in base.values())
    for row, record in base.items():
        assert column(record, "text") == column(tide[row], "base_text")
        assert column(record, "evaluations") == [1, 1, 1]
        for trial in record.trials:
            assert trial.accepted is trial.base_text is trial.trace is None
            assert trial.scorer_calls == 0  # the scorer only measures


class HalfBaseline:
    """Completes all prompts but the second."""

    name = "half"

    def config(self) -> dict[str, Any]:
        return {}

    def generate(self, prompts: Sequence[str], *_: Any) -> list[Completion | TideError]:
        self.prompts = prompts
        written = Completion("toxicity 0", (1,), "stop", read_tokens=7)
        return [CompletionError("broken") if p == PROMPTS[1] else written for p in prompts]


def test_baseline_prompt_fails_alone() -> None:
    baseline = HalfBaseline()
    method = BaselineMethod("half", baseline, scripted_engine(), ReadingScorer(), Settings())
    outcomes = {row.id: outcome for row, outcome in method.records([*ROWS, Row("x", " ")], [0, 1])}
    assert isinstance(outcomes.pop(1), CompletionError)
    assert isinstance(outcomes.pop("x"), InputError)
    assert outcomes.keys() == {row.id for row in ROWS} - {1}
    for outcome in outcomes.values():
        assert isinstance(outcome, Record)
        assert column(outcome, "text") == ["toxicity 0"] * 2
        for field, count in {"evaluations": 1, "forward_tokens": 7, "scorer_calls": 0}.items():
            assert column(outcome, field) == [count] * 2
    assert baseline.prompts == [prompt for prompt in PROMPTS for _ in range(2)]


def test_seconds_of_a_baseline_do_not_hold_the_loading_of_its_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, costs = [0.0], [60.0, 3.0]

    class LoadingBaseline(HalfBaseline, DecodingBaseline):
        def __init__(self) -> None: ...

        def generate(self, prompts: Sequence[str], *_: Any) -> list[Completion | TideError]:
            clock[0] += costs.pop(0)
            return super().generate(prompts)

    monkeypatch.setattr("tide.evaluation.methods.time.perf_counter", lambda: clock[0])
    baseline = LoadingBaseline()
    method = BaselineMethod("half", baseline, scripted_engine(), ReadingScorer(), Settings())
    ((_, record),) = method.records(ROWS[:1], [0])
    assert isinstance(record, Record)
    assert sum(trial.seconds or 0 for trial in record.trials) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda prompts: [" fine"] * len(prompts), "`generate` must return a `Completion` or"),
        (
            lambda prompts: [CompletionError("broken")],
            "`generate` must return a `Completion` or",
        ),
        (lambda prompts: prompts["x"], "baseline half: failed: TypeError"),
    ],
    ids=["texts", "too few", "fails"],
)
def test_baseline_that_breaks_its_protocol_is_an_engine_error(answer: Any, message: str) -> None:
    baseline: Any = HalfBaseline()
    baseline.generate = lambda prompts, *_: answer(prompts)
    method = BaselineMethod("half", baseline, scripted_engine(), ReadingScorer(), Settings())
    with pytest.raises(EngineError, match=message):
        list(method.records(ROWS, [0]))


def settings(spec: str, protocol: str, **common: Any) -> Settings:
    return loaded(spec, protocol, **common).settings


def test_settings_of_a_method_win_over_common_ones() -> None:
    assert settings("tide", "tide").num_trials == 3
    assert settings("tide", "tide", num_trials=2).num_trials == 2
    assert settings("tide:seed=4", "tide", seed=3).seed == 4
    assert settings("resample:temperature=1.0", "tide").temperature == 1.0
    assert settings("tide", "tide-hot").completions_per_evaluation == 8
    assert settings("base", "tide-hot").completions_per_evaluation == 1
    assert settings("base", "rad").top_k == 20
    assert settings("backtrack", "tide").strategy == PRESETS["backtrack"]["strategy"]
    assert settings("resample:max_iterations=4", "tide").max_iterations == 4
    assert settings("base", "tide").max_iterations == 1
    wide = settings("tide:cosine_threshold=0.1,num_samples=4", "tide")
    assert (wide.strategy, wide.num_samples) == ("tide:cosine_threshold=0.1", 4)
    strict = settings("backtrack:lag=2,max_iterations=3", "tide")
    assert strict.strategy == "backtrack:lag=2"
    assert (strict.max_iterations, strict.toxicity_threshold) == (3, 0.1)
    assert settings("random-walk", "dexperts").strategy == "random-walk"


@pytest.mark.parametrize(
    ("spec", "common", "name"),
    [
        ("tide", {}, "tide"),
        ("tide", {"num_trials": 7, "temperature": 0.1}, "tide"),
        ("tide", {"seed": 2, "temperature": 0.7}, "tide:temperature=0.7,seed=2"),
        ("tide:seed=2,temperature=0.7", {}, "tide:temperature=0.7,seed=2"),
        ("tide", {"mu": 0.25}, "tide:mu=0.25"),
        ("backtrack:toxicity_threshold=0.1", {"perturb": "all"}, "backtrack:perturb=all"),
        ("base", {"mu": 0.25, "top_p": 0.9}, "base:top_p=0.9"),
        ("backtrack:lag=2", {"max_iterations": 9}, "backtrack:max_iterations=9,lag=2"),
        ("backtrack:lag=4", {}, "backtrack"),
    ],
)
def test_method_name_says_what_differs(spec: str, common: dict[str, Any], name: str) -> None:
    assert loaded(spec, **common).name == name


@pytest.mark.parametrize(
    ("spec", "common", "message"),
    [
        ("bas", {}, "methods: unknown 'bas'; did you mean 'base'"),
        ("my.py", {}, "'my.py': name the class or function as well, as in my.py:NAME"),
        ("tide:mu=-1", {}, "methods: tide:mu=-1: mu: "),
        ("tide:num_trials=1", {}, "set num_trials for all methods"),
        ("resample:nu=1", {}, "methods: .* no option 'nu'; did you mean 'mu'. known: the settings"),
        ("tide:strategy=shuffled", {}, "name the strategy in --methods"),
        ("base:sed=3", {}, "methods: base:sed=3: unknown setting 'sed'; did you mean 'seed'"),
        ("base:max_iterations=3", {}, "max_iterations is a setting of searches"),
        ("base", {"tempratur": 1.5}, "tempratur"),
        ("base", {"num_samples": -5}, "num_samples"),
        ("base", {"protocol": "tid"}, "unknown protocol 'tid'; did you mean 'tide'"),
    ],
)
def test_invalid_methods_are_refused(spec: str, common: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loaded(spec, **common)


def test_stop_strings_are_in_config_and_name() -> None:
    stop = ("\n", "(a, b", "user:")
    method = loaded("base", stop=stop)
    assert method.config["settings"]["stop"] == '["\\n", "\\u0028a, b", "user:"]'
    assert settings(method.name, "tide").stop == stop
    base = loaded("base:stop=.")
    assert base.settings.stop == (".",)
    assert next(base.records(ROWS, [0]))[1].trials[0].text in ("toxicity 0", "toxicity 1")


@pytest.mark.parametrize("fields", ['{"min_p": 0.1}', '{"a": "(", "b": [1, null]}', "{}", ""])
def test_server_fields_are_in_the_name(fields: str) -> None:
    chosen = resolve_settings({"server_fields": fields})
    assert chosen.server_fields == (json.loads(fields) if fields else None)
    name = run_name("base", chosen, resolve_settings({}))
    assert settings(name, "tide").server_fields == chosen.server_fields


@pytest.mark.parametrize("protocol", ["paper", "published"])
def test_protocol_sets_its_variant(protocol: str) -> None:
    tide = settings("tide", protocol)
    assert tide.strategy == f"tide:variant={protocol}"
    assert (tide.perturb, tide.accept_empty) == ("all", True)
    assert settings("tide:variant=ours", protocol).strategy == "tide"
    assert settings("random-walk", protocol).strategy == f"random-walk:variant={protocol}"
    assert settings("backtrack", protocol).strategy == PRESETS["backtrack"]["strategy"]
    specs = ["base", "tide", "tide:variant=ours", "backtrack"]
    methods = [loaded(spec, protocol) for spec in specs]
    assert [method.name for method in methods] == specs
    assert methods[1].config["strategy_options"]["variant"] == protocol


def test_method_of_a_detoxifier_is_named_by_its_strategy() -> None:
    for preset, strategy, name in (
        ("auto", "backtrack", "backtrack"),
        ("relative", "backtrack", "backtrack"),
        ("relative", "tide", "relative"),
    ):
        own: dict[str, Any] = {"preset": preset, "strategy": strategy}
        detoxifier = Detoxifier(scripted_engine(), scorer=ReadingScorer(), **own)
        assert method_of(detoxifier, preset).name == name
