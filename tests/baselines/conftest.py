from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.baselines.plain import World, save_random_artefacts, use_short_prefixes
from tests.models import save_causal_lm
from tide.baselines.base import FitSettings
from tide.baselines.fit import FitTask, Labelled
from tide.engines.local.engine import TransformersEngine

# gpt2 and gemma2, which differ most, run with every change.
KINDS = ("gpt2", "gemma2", "llama")


def with_nightly(*quick: str, of: Iterable[str] = KINDS) -> list[Any]:
    """Return all values `of`; those that are not in `quick` are tested every night."""
    nightly = pytest.mark.nightly
    return [value if value in quick else pytest.param(value, marks=nightly) for value in of]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    """Makes each kind once: pytest caches only the last value of a parametrised fixture."""
    return cache(lambda kind: make_world(tmp_path_factory.mktemp(kind), kind))


@pytest.fixture(params=with_nightly("gpt2", "gemma2"))
def world(request: pytest.FixtureRequest, worlds: Callable[[str], World]) -> World:
    return worlds(request.param)


@pytest.fixture(scope="session")
def gpt2(worlds: Callable[[str], World]) -> World:
    return worlds("gpt2")


@pytest.fixture(autouse=True)
def _short_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_short_prefixes(monkeypatch)


def fit_task(model: Any, tokenizer: Any, data: Labelled, settings: FitSettings) -> FitTask:
    training = settings.training(model)
    return FitTask(tokenizer, model, data, training, lambda *_: None, scorer="judge")


def make_world(path: Path, kind: str) -> World:
    folder = save_causal_lm(path / "model", kind, bos=kind in ("llama", "gemma2"))
    engine = TransformersEngine(folder)
    artefacts = path / "artefacts"
    save_random_artefacts(artefacts, engine.model, engine.name)
    return World(folder, engine, artefacts)
