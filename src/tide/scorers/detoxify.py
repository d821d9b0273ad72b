"""`detoxify:original`, `detoxify:unbiased`, `detoxify:multilingual`... (Unitary's Detoxify)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from tide.core.errors import InputError, ScorerError, guarded
from tide.core.optional import require
from tide.core.pretrained import find_device
from tide.plugins.options import checked
from tide.scorers.base import Floats, PlainScorer, in_batches


class DetoxifyScorer(PlainScorer):
    """The `toxicity` output of a Detoxify model.

    The checkpoint comes from the project's releases, at first use. The package would unpickle it;
    here it is read with `weights_only`, which runs no code from the file.
    Raises InputError for an unknown variant, ScorerError if the checkpoint cannot be had or read,
    or lacks weights.
    """

    @checked
    def __init__(self, variant: str = "original", *, device: str = "auto") -> None:
        package: Any = require("detoxify.detoxify", extra="detoxify")
        if variant not in package.MODEL_URLS:
            raise InputError(
                f"scorer detoxify: unknown variant {variant!r}; "
                f"known: {', '.join(package.MODEL_URLS)}"
            )
        self.name = f"detoxify:{variant}@{version('detoxify')}"
        self._device = find_device(device)
        with guarded(ScorerError, f"scorer {self.name}: cannot be loaded"):
            url = package.MODEL_URLS[variant]
            checkpoint = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", progress=False, weights_only=True
            )
            arguments = checkpoint["config"]["arch"]["args"]
            labels = checkpoint["config"]["dataset"]["args"]["classes"]
            self._model, self._tokenizer = package.get_model_and_tokenizer(
                **arguments, state_dict=checkpoint["state_dict"]
            )
            if missing := sorted(self._model.state_dict().keys() - checkpoint["state_dict"].keys()):
                raise ValueError(f"its checkpoint lacks the weight {missing[0]}")
            # The first label is the overall toxicity in all variants ("toxic" or "toxicity").
            self._column = [label in ("toxic", "toxicity") for label in labels].index(True)
            self._model.to(self._device).eval().requires_grad_(False)

    def score(self, texts: Sequence[str]) -> Floats:
        return in_batches(self._score_batch, texts)

    def close(self) -> None:
        del self._model

    @torch.inference_mode()
    def _score_batch(self, texts: list[str]) -> Floats:
        inputs = self._tokenizer(texts, return_tensors="pt", truncation=True, padding=True)
        logits = self._model(**inputs.to(self._device))[0]
        return np.asarray(logits.double().sigmoid()[:, self._column].cpu().numpy())
