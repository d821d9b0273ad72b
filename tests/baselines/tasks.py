"""A small fit task: a tiny model, texts of two kinds, and a scorer that prefers short texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models import save_causal_lm
from tide.baselines import rollouts
from tide.baselines.base import FitSettings
from tide.baselines.fit import FitTask, Labelled
from tide.data.texts import LabelledText
from tide.engines.local.engine import load_model
from tide.scorers.base import CallableScorer

_WORDS = ["The", "weather", "today", "is", "fine", "and", "the", "people", "are", "kind"]


def tiny_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: FitSettings, dtype: str = "auto"
) -> FitTask:
    tokenizer, model = load_model(str(save_causal_lm(folder, "gpt2")), torch.device("cpu"), dtype)
    texts = [
        LabelledText(f"{' '.join(_WORDS[: 2 + i % 8])} {i}", float(i % 2), "a") for i in range(480)
    ]
    judge = CallableScorer(lambda texts: [min(len(text), 100) / 100 for text in texts])
    monkeypatch.setattr(rollouts, "load_scorer", lambda spec: judge)
    return FitTask(
        name="tiny",
        tokenizer=tokenizer,
        model=model,
        data=Labelled(texts, []),
        settings=settings.training(model),
        progress=lambda what, done, total: None,
        scorer="judge",
    )
