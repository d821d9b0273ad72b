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
from tide.scorers.base import Attributed, Floats, PlainScorer
from tide.scorers.huggingface import Windows, worst

_SEVEN = ("en", "fr", "es", "it", "pt", "tr", "ru")


class DetoxifyScorer(PlainScorer):
    """The `toxicity` output of a Detoxify model; all its outputs are attributes.

    variant: `original`, `unbiased` or `multilingual`, optionally followed by `#` and other outputs
    to take, comma-separated, of which the largest counts: `detoxify:original#threat,insult`.

    The checkpoint comes from the project's releases, at first use. The package would unpickle it;
    here it is read with `weights_only`, which runs no code from the file.
    A text longer than the model's context is read in windows, as by `hf`.
    Raises InputError for an unknown variant or output, ScorerError if the checkpoint cannot be had
    or read, or lacks weights.
    """

    @checked
    def __init__(self, variant: str = "original", *, device: str = "auto") -> None:
        variant, _, wanted = variant.partition("#")
        package: Any = require("detoxify.detoxify", extra="detoxify")
        if variant not in package.MODEL_URLS:
            raise InputError(
                f"scorer detoxify: unknown variant {variant!r}; "
                f"known: {', '.join(package.MODEL_URLS)}"
            )
        self.name = f"detoxify:{variant}@{version('detoxify')}"
        self.languages = _SEVEN if "multilingual" in variant else ("en",)
        self._device = find_device(device)
        with guarded(ScorerError, f"scorer {self.name}: cannot be loaded"):
            url = package.MODEL_URLS[variant]
            checkpoint = torch.hub.load_state_dict_from_url(
                url, map_location="cpu", progress=False, weights_only=True
            )
            arguments = checkpoint["config"]["arch"]["args"]
            labels = checkpoint["config"]["dataset"]["args"]["classes"]
            self._model, tokenizer = package.get_model_and_tokenizer(
                **arguments, state_dict=checkpoint["state_dict"]
            )
            if missing := sorted(self._model.state_dict().keys() - checkpoint["state_dict"].keys()):
                raise ValueError(f"its checkpoint lacks the weight {missing[0]}")
            self.attributes = tuple(map(str, labels))
            self._columns = self._chosen(wanted)
            self._windows = Windows(tokenizer, self._model.config)
            self._model.to(self._device).eval().requires_grad_(False)

    def score(self, texts: Sequence[str]) -> Floats:
        return self.score_attributes(texts).values

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        rows, owners = self._windows.read(texts, self._probabilities)
        rows = rows.reshape(-1, len(self.attributes))
        return Attributed(
            worst(rows[:, self._columns].max(axis=1, initial=0.0), owners, len(texts)),
            {
                name: worst(column, owners, len(texts))
                for name, column in zip(self.attributes, rows.T, strict=True)
            },
        )

    def close(self) -> None:
        del self._model

    def _chosen(self, wanted: str) -> list[int]:
        """The columns to take: those `wanted`, or the overall toxicity of the variant."""
        overall = next(label for label in self.attributes if label in ("toxic", "toxicity"))
        chosen = wanted.split(",") if wanted else [overall]
        if unknown := [label for label in chosen if label not in self.attributes]:
            has = ", ".join(self.attributes)
            raise InputError(f"scorer {self.name}: no output {unknown[0]!r}; it has {has}")
        self.name += f"#{wanted}" if wanted else ""
        return [self.attributes.index(label) for label in chosen]

    @torch.inference_mode()
    def _probabilities(self, inputs: Any) -> Floats:
        """Of every output, shape (windows, outputs)."""
        logits = self._model(**inputs.to(self._device))[0]
        return np.asarray(logits.double().sigmoid().cpu().numpy(), dtype=np.float64)
