"""The defaults of every door. Preset files are untrusted: invalid ones are refused in one line, and
no code is run.
"""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.hostile import BODIES, mutations
from tests.worlds import ReadingScorer, scripted_engine
from tide import Detoxifier
from tide.cli.doctor import doctor
from tide.cli.evaluate import Evaluation
from tide.cli.run import run
from tide.cli.serve import serve
from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.detoxifier.presets import TUNABLE, preset_values, read_preset
from tide.evaluation import evaluate
from tide.scorers import DEFAULT_SCORER, load_scorer
from tide.search import resolve_settings
from tide.server.policies import CommandLine

GOOD: dict[str, Any] = {
    "tide_preset": 1,
    "settings": {
        "strategy": "tide:cosine_threshold=0.4",
        "mu_relative": 1.3,
        "num_samples": 2,
        "toxicity_threshold": 0.2,
    },
    "about": {"model": "pocket", "prompts": 600},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.json"


def changed(**settings: Any) -> dict[str, Any]:
    return {**GOOD, "settings": {**GOOD["settings"], **settings}}


def test_a_file_is_a_preset(path: Path) -> None:
    path.write_text(json.dumps(GOOD))
    assert preset_values(str(path), "any") == read_preset(path) == GOOD["settings"]
    with Detoxifier(scripted_engine(), scorer=ReadingScorer(), preset=path, seed=3) as detox:
        assert (detox.settings.mu_relative, detox.settings.seed) == (1.3, 3)
        assert detox.settings.strategy == "tide:cosine_threshold=0.4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "not a JSON object"),
        ({**GOOD, "tide_preset": 2}, "not a preset: tide_preset: "),
        ({**GOOD, "more": 1}, "not a preset: more: "),
        ({"tide_preset": 1}, "not a preset: settings: "),
        (changed(mu_relative=[1.3]), "not a preset: settings.mu_relative"),
        (changed(mu_relative=-1), "mu_relative: "),
        (changed(mu=0.1), "give mu or mu_relative, not both"),
        (changed(num_trials=5), "a preset cannot set 'num_trials'; it sets strategy, "),
        (changed(on_unresolved="best"), "a preset cannot set 'on_unresolved'"),
        (changed(strategy="tide:seed=3"), "strategy: a preset cannot set 'seed'"),
        (changed(strategy=5), "strategy: '5' is not one of "),
        (changed(strategy="os:System"), "strategy: 'os:System' is not one of "),
        (changed(strategy="base"), "strategy: 'base' is not one of "),
        (
            changed(toxicity_threshold=0.8),
            "toxicity_threshold: a preset may not set more than 0.5",
        ),
        (changed(strategy="tide:cosine_threshold=nan"), "strategy tide: cosine_threshold: "),
        (changed(step_relative=float("nan")), "not a preset: settings.step_relative"),
        ({**GOOD, "settings": {f"x{i}": 1 for i in range(65)}}, "not a preset: settings: "),
    ],
)
def test_what_is_no_preset(content: Any, message: str, path: Path) -> None:
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        read_preset(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        preset_values(str(tmp_path / "none.json"), "any")
    with pytest.raises(
        InputError, match=r"unknown preset 'nonsense'; known: auto, .* a \.json file"
    ):
        preset_values("nonsense", "any")
    with pytest.raises(InputError, match="unknown preset 'backtrak'; did you mean 'backtrack'"):
        preset_values("backtrak", "any")


@pytest.mark.attack
@examples(60, 5000)
@given(data=st.data())
def test_a_preset_file_gives_settings_or_one_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = data.draw(mutations())(copy.deepcopy(GOOD))
    body = json.dumps(content).encode(errors="surrogatepass")
    if data.draw(st.booleans()):
        body = data.draw(st.sampled_from(BODIES))(body)
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(body)
    said, found = "", {}
    try:
        found = read_preset(path)
    except InputError as error:
        said = str(error)
    assert not {"\n", "\x1b"} & set(said)
    assert found.keys() <= set(TUNABLE)
    assert resolve_settings(found).toxicity_threshold <= 0.5


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
    assert Settings(strategy="tide").toxicity_threshold == 0.5


def test_another_strategy_of_a_call_has_its_own_threshold() -> None:
    with Detoxifier(scripted_engine(), scorer=ReadingScorer()) as detox:
        settings, _ = detox._resolve({"strategy": "resample"})
        assert settings.toxicity_threshold == 0.5
        settings, _ = detox._resolve({"strategy": "resample", "toxicity_threshold": 0.2})
        assert settings.toxicity_threshold == 0.2
