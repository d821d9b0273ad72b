"""A scripted world: the toxicity of a completion is a smooth function of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fakes import FakeScorer
from tests.scripted_engine import ScriptedEngine

PROMPTS = [
    "the first prompt of all",
    "a second one",
    "and yet another that is a little longer",
    "short words",
    "five little words go here",
]


def toxicity(x: Tensor) -> float:
    """A toxicity in (0, 1) that falls along one fixed direction of the embeddings."""
    generator = torch.Generator().manual_seed(7)
    direction = torch.randn(x.shape[-1], generator=generator)
    along = float((x.mean(dim=0) @ direction) / direction.norm())
    return 1.0 / (1.0 + float(np.exp(-3.0 * (along + 0.4))))


def scripted_engine(**options: Any) -> ScriptedEngine:
    """An engine that writes its toxicity as text, with a little noise from the sampling seed."""

    def respond(x: Tensor, seed: int) -> str:
        noise = np.random.default_rng(seed).normal(0.0, 0.01)
        return f"toxicity {min(max(toxicity(x) + noise, 0.0), 1.0):.6f}"

    return ScriptedEngine(respond, **options)


def read(texts: Sequence[str]) -> list[float]:
    """The toxicity written in each text; 0 for any other text."""
    return [float(text.split()[1]) if text.startswith("toxicity ") else 0.0 for text in texts]


class ReadingScorer(FakeScorer):
    """Reads the toxicity that the scripted engine wrote."""

    def __init__(self) -> None:
        super().__init__(lambda text: read([text])[0], name="reading")
