"""Extreme options are refused; with all others a text is written, or one error says why not."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.baselines.conftest import World
from tests.baselines.stand_ins import STRENGTHS
from tests.generated import examples
from tide.baselines import REGISTRY
from tide.baselines.base import FitSettings
from tide.core.errors import CompletionError, EngineError, InputError, validated
from tide.core.settings import Sampling
from tide.plugins.options import format_value


def is_number(annotation: Any) -> bool:
    """Whether the annotation is a number, or a number or None."""
    return annotation in (int, float) or any(map(is_number, get_args(annotation)))


OPTIONS = [
    (kind, name)
    for kind in STRENGTHS
    for name, field in REGISTRY.load(kind).options_class.model_fields.items()
    if is_number(field.annotation)
]


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
@examples(5, 100)
@given(value=st.floats(1e5, 1e308) | st.floats(max_value=-1e-9) | st.sampled_from([math.nan]))
def test_every_number_has_bounds(gpt2: World, kind: str, name: str, value: float) -> None:
    for written in (format_value(value), "1e400", "-inf", "text"):
        with pytest.raises(InputError, match=f"baseline {kind}: {name}: "):
            gpt2.load(f"{kind}:{name}={written}")


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
@pytest.mark.attack
@examples(2, 60)
@given(value=st.floats(0, 10_000), temperature=st.sampled_from([0.0, 0.1, 1.0]))
def test_baseline_with_valid_options_writes_or_raises_one_line(
    gpt2: World, kind: str, name: str, value: float, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, max_new_tokens=3)
    with suppress(InputError, EngineError):
        baseline = gpt2.load(f"{kind}:{name}={format_value(value)}")
        (generated,) = baseline.generate(["The weather"], sampling, [0])
        if not isinstance(generated, CompletionError):
            assert generated.completion.token_ids or generated.completion.finish_reason == "stop"


def test_overflowing_model_raises_completion_error(gpt2: World) -> None:
    baseline = gpt2.load("dapt:scale=10000")
    baseline.artefact.tensors.update({k: 1e20 * v for k, v in baseline.artefact.tensors.items()})  # type: ignore[attr-defined]
    (error,) = baseline.generate(["The weather"], Sampling(), [0])
    assert isinstance(error, CompletionError)
    assert "NaN or infinite" in str(error)


@pytest.mark.parametrize("name", FitSettings.model_fields)
def test_every_setting_of_a_fit_has_bounds(name: str) -> None:
    for value in (1e300, 10**30, -1, math.nan, math.inf, "x"):
        with pytest.raises(InputError, match=name):
            validated(FitSettings, {name: value})
