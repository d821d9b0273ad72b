from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest

from tests.worlds import scripted_engine
from tide import Detoxifier
from tide.cli.evaluate import evaluate as evaluation_command
from tide.cli.installed import doctor
from tide.cli.run import run
from tide.cli.serve import serve
from tide.core.errors import InputError
from tide.core.settings import OnFail, Overrides, Settings
from tide.detoxifier.presets import PRESETS, preset_for, preset_values
from tide.evaluation import evaluate
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.search import resolve_settings
from tide.search.tide import TideStrategy
from tide.server.policies import CommandLine


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mu", float("nan")), ("toxicity_threshold", 1.0), ("temperature", -1), ("top_p", 0.0),
        ("perturb", "some"), ("perturb", "last:0"), ("perturb", "last:9999999999"),
        ("perturb", 8), ("no_such_setting", 1), ("strategy", 3),
        # Extreme values, which make logits or embeddings infinite or exhaust the memory.
        ("temperature", 1e-39), ("temperature", 1e39), ("num_samples", 10**9), ("mu", 1e308),
        ("max_new_tokens", 10**9), ("seed", 2**63), ("min_new_tokens", 21),
        ("stop", ["a", ""]), ("stop", ["a"] * 17), ("stop", "x" * 257), ("stop", ["\ud800"]),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_its_field(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{name}(\.\d+)?: ") as caught:
        resolve_settings({name: value})
    assert "default factory" not in str(caught.value)


def test_one_scale_absolute_or_relative() -> None:
    assert (Settings().mu, Settings().mu_relative) == (None, 1.2)
    assert (Settings(mu=0.1).mu, Settings(mu=0.1).mu_relative) == (0.1, None)
    with pytest.raises(InputError, match="give mu or mu_relative, not both"):
        resolve_settings({"mu": 0.1, "mu_relative": 1.0})


def test_a_later_layer_replaces_the_scale_of_an_earlier_one() -> None:
    settings = resolve_settings(
        {"mu": 0.1, "step_size": 1.5, "num_samples": 4}, {"mu_relative": 0.8}
    )
    assert (settings.mu, settings.mu_relative, settings.step_size) == (None, 0.8, 1.5)
    assert resolve_settings(settings.model_dump(), {"mu": 0.2}).mu_relative is None
    assert resolve_settings(settings.model_dump()) == settings


def test_settings_behind_a_strategy_are_lifted() -> None:
    spec = "tide:num_samples=16,cosine_threshold=0.4,mu=0.1,deadline=none,variant=ours"
    settings = resolve_settings({"mu_relative": 2.0, "num_samples": 4}, {"strategy": spec})
    assert settings.strategy == "tide:cosine_threshold=0.4"
    assert (settings.num_samples, settings.mu, settings.mu_relative) == (16, 0.1, None)
    assert resolve_settings(settings.model_dump()) == settings
    assert resolve_settings(settings.model_dump(), {"strategy": "shuffled"}).strategy == "shuffled"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"strategy": "tide", "cosine_threshold": 0.5},
            "cosine_threshold: .* write strategy='tide:c",
        ),
        ({"strategy": "resample", "cosine_threshold": 0.5}, "cosine_threshold: unknown"),
        ({"strategy": "tide:cosine_threshold=1"}, "strategy tide: cosine_threshold: "),
        ({"strategy": "backtrack:blame=nan"}, "strategy backtrack: blame: "),
        ({"strategy": "tide:variant=hers"}, "strategy tide: variant: "),
        ({"strategy": "tide:num_samples=0"}, "num_samples: "),
        ({"strategy": "tide:num_samples=2", "num_samples": 2}, "num_samples: is given twice"),
        ({"strategy": "tide:strategy=shuffled"}, "strategy tide: no option 'strategy'"),
        ({"strategy": "tide:max_iterations=none"}, "max_iterations: "),
        ({"temprature": 1}, "temprature: unknown; did you mean 'temperature'\\? \\(got 1\\)"),
    ],
)
def test_options_of_a_strategy_are_written_behind_its_name(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        resolve_settings(values)


def test_keywords_are_the_settings() -> None:
    known = get_type_hints(Overrides)
    hints = get_type_hints(Settings)
    hints["stop"] = str | Sequence[str]  # a single string is accepted, too
    hints["on_fail"] = OnFail | dict[str, OnFail]  # and a single action
    assert known == {name: hints[name] for name in Settings.model_fields}


@pytest.mark.parametrize(
    ("model", "preset"),
    [
        ("openai-community/gpt2-large", "gpt2-large"),
        ("google/gemma-2-2b-it", "gemma-2-2b"),
        ("/models/Qwen3-4B-Base/", "qwen3-4b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("openai-community/gpt2", "relative"),
        ("Qwen/Qwen3-4B-Thinking-2507", "relative"),
        ("models/backtrack", "relative"),
        ("models/relative", "relative"),
    ],
)
def test_presets_go_by_the_models_last_name(model: str, preset: str) -> None:
    assert preset_for(model) == preset


def test_every_preset_is_valid() -> None:
    for name in PRESETS:
        resolve_settings(preset_values(name, "any"))


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match="unknown preset 'nonsense'; known: auto, "):
        preset_values("nonsense", "any")


def test_strategy_class_has_the_preset_of_the_model() -> None:
    assert preset_values("auto", "pocket", TideStrategy) == preset_values("auto", "pocket", "tide")
    with scripted_engine() as engine, Detoxifier(engine, strategy=TideStrategy) as detox:  # type: ignore[arg-type]
        assert detox.settings.toxicity_threshold == 0.1


def test_every_door_has_the_same_defaults() -> None:
    """Strategy, threshold and scorer of `Settings`, Python, the command line and the server."""
    expected = resolve_settings({})
    assert (expected.strategy, expected.toxicity_threshold) == ("backtrack", 0.1)
    assert Settings() == expected
    for arguments in ({}, {"settings": Settings()}, {"preset": "backtrack"}):
        with Detoxifier(scripted_engine(), **arguments) as detox:  # type: ignore[arg-type]
            assert detox.settings == expected
            assert detox.scorer.name == load_scorer(DEFAULT_SCORER).name
    assert CommandLine("pocket").scorer == DEFAULT_SCORER
    for function in (run, serve, doctor, evaluation_command, evaluate):
        assert inspect.signature(function).parameters["scorer"].default == DEFAULT_SCORER
    assert Settings(strategy="tide").toxicity_threshold == 0.1
    assert preset_values("gpt2-large", "any")["toxicity_threshold"] == 0.5
