"""What the engine makes of its options before vLLM gets them; `tests/vllm` runs the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tide.engines.vllm
from tide.core.errors import EngineError, InputError
from tide.engines.vllm import VllmEngine

FALSE, TRUE = ("false", "False", "FALSE"), ("true", "True", "TRUE")


def received(monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """What vLLM's `AsyncEngineArgs` are made of."""
    got: dict[str, Any] = {}

    def arguments(*, model: str, **settings: Any) -> NoReturn:
        got.update(settings)
        raise AssertionError("far enough")

    platform = SimpleNamespace(is_cpu=lambda: True)
    stand_in = SimpleNamespace(AsyncEngineArgs=arguments, AsyncLLM=None, current_platform=platform)
    monkeypatch.setattr(tide.engines.vllm, "require", lambda *_: stand_in)
    with pytest.raises(EngineError, match=r"model pocket: loading failed: .*far enough"):
        VllmEngine("pocket", **options)
    return got


@pytest.mark.parametrize("written", [*FALSE, "no", "off", "0", False])
def test_code_runs_only_where_it_is_asked_for(
    written: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert received(monkeypatch, trust_remote_code=written)["trust_remote_code"] is False
    assert received(monkeypatch)["trust_remote_code"] is False


@pytest.mark.parametrize(("texts", "meant"), [(FALSE, False), (TRUE, True)])
def test_booleans_of_vllms_own(
    texts: tuple[str, ...], meant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in texts:
        options = {"enforce_eager": text, "nested": {"deep": [text, "other"]}, "load": "auto"}
        got = received(monkeypatch, **options)
        assert got["enforce_eager"] is meant
        assert got["nested"] == {"deep": [meant, "other"]}
        assert got["load"] == "auto"


@given(st.sampled_from(["no", "off", "yes", "on"]), st.booleans(), st.booleans())
def test_what_may_be_a_boolean_is_refused(text: str, upper: bool, nested: bool) -> None:
    text = text.upper() if upper else text
    with pytest.raises(InputError, match=r"enforce_eager.*: write true or false"):
        VllmEngine("pocket", enforce_eager={"deep": text} if nested else text)


@pytest.mark.parametrize(
    "options",
    [
        {"hf_overrides": {"trust_remote_code": True}},
        {"speculative_config": {"model": "a/b", "more": [{"trust_remote_code": "true"}]}},
    ],
)
def test_code_is_not_allowed_by_another_option(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="trust_remote_code is an option of its own"):
        VllmEngine("pocket", **options)


@pytest.mark.parametrize("value", [0, 10**6, "x", 1.5])
def test_bounds_of_a_batch(value: Any) -> None:
    with pytest.raises(InputError, match="max_batch"):
        VllmEngine("pocket", max_batch=value)
