"""`hf:<id or folder>`: any transformers text-classification model with labels that mean toxic."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tide.core.errors import InputError, ScorerError, guarded
from tide.core.pretrained import check_tokenizer, find_device, load_pretrained
from tide.plugins.options import checked
from tide.scorers.base import Attributed, Floats, PlainScorer, in_batches
from tide.scorers.labels import how_joined, toxic_columns

# A model that reads less of a text scores something else.
_LEAST_TOKENS = 16
_PROBE = "The weather is fine today."


class HuggingFaceScorer(PlainScorer):
    """The probability that a text-classification model gives to its toxic labels.

    spec: hub id or folder, optionally followed by `#` and the toxic labels, comma-separated:
    `hf:unitary/toxic-bert`, `hf:./my-model#LABEL_1`. Without them, labels with a usual name (toxic,
    hate, offensive...) are taken; of two unnamed labels, LABEL_1.

    A model of exclusive labels gives their summed softmax, or with `#max:LABEL,LABEL` the largest;
    its toxic labels are its attributes, where there are several. A multi-label one (sigmoid
    outputs) gives the largest of them, and all its labels are attributes. Texts longer than the
    model's context are cut at its end.

    Raises ScorerError if the model cannot be loaded whole, its head included, and InputError for
    labels that it does not have and a device that cannot be used.
    """

    @checked
    def __init__(self, spec: str, *, device: str = "auto") -> None:
        model, _, labels = spec.partition("#")
        if not model:
            raise InputError("scorer hf: name a model, as in hf:ID_OR_FOLDER")
        self._device = find_device(device)
        with guarded(ScorerError, f"scorer hf:{model}: cannot be loaded"):
            self._load(model, labels)

    def _load(self, model: str, labels: str) -> None:
        from transformers import AutoModelForSequenceClassification  # noqa: PLC0415  (slow import)

        self._tokenizer, self._model = load_pretrained(
            AutoModelForSequenceClassification, model, self._device, torch.float32
        )
        check_tokenizer(self._tokenizer, len(self._model.get_input_embeddings().weight))
        config = self._model.config
        names = [config.id2label[i] for i in range(len(config.id2label))]
        self._labels = len(names)
        how, labels = how_joined(labels)
        self._toxic = toxic_columns(f"hf:{model}", names, labels)
        multi_label = config.problem_type == "multi_label_classification"
        self._multi_label = multi_label or config.num_labels == 1
        if self._multi_label and how == "sum":
            raise InputError(
                f"scorer hf:{model}: its labels are not exclusive and have no sum; leave out 'sum:'"
            )
        self._largest = self._multi_label or how == "max"
        reported = [*range(len(names))] if self._multi_label else self._toxic
        self._reported = reported if len(reported) > 1 else []
        self.attributes = tuple(names[i] for i in self._reported)
        positions = getattr(config, "max_position_embeddings", 10**9)
        if "roberta" in config.model_type:  # its first positions are the padding's
            positions -= config.pad_token_id + 1
        self._max_tokens = min(self._tokenizer.model_max_length, positions)
        if self._max_tokens < _LEAST_TOKENS:
            raise ValueError(f"reads {self._max_tokens} tokens of a text; it needs {_LEAST_TOKENS}")
        folder = Path(model)
        revision = digest_of(folder) if folder.is_dir() else getattr(config, "_commit_hash", None)
        chosen = ",".join(names[i] for i in self._toxic)
        chosen = f"max:{chosen}" if how == "max" and not self._multi_label else chosen
        self.name = f"hf:{model}{f'@{revision[:8]}' if revision else ''}#{chosen}"
        self._probabilities([_PROBE, _PROBE + " " + _PROBE])

    def score(self, texts: Sequence[str]) -> Floats:
        return in_batches(lambda batch: self._chosen(self._probabilities(batch)), texts)

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        rows = in_batches(self._probabilities, texts).reshape(len(texts), self._labels)
        columns = zip(self.attributes, self._reported, strict=True)
        return Attributed(self._chosen(rows), {name: rows[:, i] for name, i in columns})

    def close(self) -> None:
        del self._model

    def _chosen(self, rows: Floats) -> Floats:
        toxic = rows[:, self._toxic]
        scores = toxic.max(axis=1, initial=0.0) if self._largest else toxic.sum(axis=1)
        return np.asarray(scores.clip(max=1.0), dtype=np.float64)

    def _probabilities(self, texts: list[str]) -> Floats:
        """Of every label, shape (len(texts), labels)."""
        if self._tokenizer.pad_token is None and len(texts) > 1:
            # No padding token, no padding: one text at a time.
            return np.concatenate([self._probabilities([text]) for text in texts])
        inputs: Any = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=len(texts) > 1,
            truncation=True,
            max_length=self._max_tokens,
            split_special_tokens=True,  # a text that holds "[SEP]" does not end there
        )
        with torch.inference_mode():
            logits = self._model(**inputs.to(self._device)).logits.double()
        rows = logits.sigmoid() if self._multi_label else logits.softmax(dim=-1)
        return np.asarray(rows.cpu().numpy(), dtype=np.float64)


def digest_of(folder: Path) -> str:
    """Of the model and tokenizer in a folder: training it again makes it another scorer."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()
