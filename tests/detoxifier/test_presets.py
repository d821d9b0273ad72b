"""The defaults of every entry point, and presets."""

from __future__ import annotations

import inspect

import pytest

from tests.worlds import scripted_engine
from tide import Detoxifier
from tide.cli.evaluate import Evaluation
from tide.cli.installed import doctor
from tide.cli.run import run
from tide.cli.serve import serve
from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.detoxifier.presets import preset_values
from tide.evaluation import evaluate
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.search import resolve_settings
from tide.search.tide import TideStrategy
from tide.server.policies import CommandLine


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match="unknown preset 'nonsense'; known: auto, "):
        preset_values("nonsense", "any")
    with pytest.raises(InputError, match="unknown preset 'backtrak'; did you mean 'backtrack'"):
        preset_values("backtrak", "any")


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
    for function in (run, serve, doctor, evaluate):
        assert inspect.signature(function).parameters["scorer"].default == DEFAULT_SCORER
    assert Evaluation().scorer == DEFAULT_SCORER
    assert Settings(strategy="tide").toxicity_threshold == 0.1
    assert preset_values("gpt2-large", "any")["toxicity_threshold"] == 0.5
