"""What a package of somebody else's adds to TIDE: one of each kind, each with an option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field

from tests.scripted_engine import ScriptedEngine
from tide import Options, Strategy
from tide.baselines.decoding import DecodingBaseline
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import SteeredLane


class Scribbler(ScriptedEngine):
    """Writes one word, again and again."""

    def __init__(self, model: str, *, word: str = "fine", max_batch: int = 16) -> None:
        super().__init__(lambda x, seed: f"{word} " * 5, max_batch=max_batch)
        self.name = model


class LengthOptions(Options):
    limit: int = Field(default=100, ge=1, description="Words of a text that scores 1.")


class LengthScorer:
    """The longer a text, the more toxic it is."""

    options_class = LengthOptions
    threshold = 0.5

    def __init__(self, options: LengthOptions) -> None:
        self.name = f"length@1:{options.limit}"
        self._limit = options.limit

    def score(self, texts: Sequence[str]) -> Any:
        return np.minimum([len(text.split()) / self._limit for text in texts], 1.0)

    def close(self) -> None:
        pass


class Jumps(Strategy):
    """Tries some points around the prompt, once."""

    def steps(self, start: Any) -> Any:
        self.iterations += 1
        points = yield from self.evaluate(self.x0 + self.mu * self.normal(3), "perturbation")
        yield from self.accept(points)


class BiasOptions(Options):
    strength = "scale"

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
