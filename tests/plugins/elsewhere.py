"""An engine and a learned baseline of somebody else's package, each with an option."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from tests.scripted_engine import ScriptedEngine
from tide import Options
from tide.baselines.decoding import DecodingBaseline
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import SteeredLane


class Scribbler(ScriptedEngine):
    """Writes one word, again and again."""

    def __init__(self, model: str, *, word: str = "fine", max_batch: int = 16) -> None:
        super().__init__(lambda x, seed: f"{word} " * 5, max_batch=max_batch)
        self.name = model


class BiasOptions(Options):
    scale: float = Field(default=1.0, ge=0, description="Multiple of the learned bias.")


class Bias(DecodingBaseline):
    """Adds a learned number to the logit of every token: the same words, at the same price."""

    kind = "elsewhere-bias"
    options_class = BiasOptions
    learned = True
    options: BiasOptions

    def lanes(self) -> Any:
        assert self.artefact is not None
        bias = self.options.scale * self.artefact.tensors["bias"]

        class Lane(SteeredLane):
            def shift(self, scores: torch.Tensor) -> torch.Tensor:
                return scores + bias

        return Lane

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        texts, held_out = task.texts()
        return Fitted({"bias": torch.ones(1)}, {"texts": float(len(texts) + len(held_out))})
