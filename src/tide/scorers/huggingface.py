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
from tide.core.sanitize import logger
from tide.plugins.options import checked
from tide.scorers.base import Floats, PlainScorer, in_batches

_LOG = logger(__name__)

# A model that reads less of a text scores something else.
_LEAST_TOKENS = 16
_PROBE = "The weather is fine today."

# Labels of the usual toxicity models, lower case, without separators.
_TOXIC_LABELS = {
    "abusive", "hate", "hatespeech", "hateful", "identityattack", "identityhate", "insult",
    "obscene", "offensive", "offensivelanguage", "profanity", "severetoxic", "severetoxicity",
    "sexualexplicit", "threat", "toxic", "toxicity", "harmful", "hap",
}  # fmt: skip


class HuggingFaceScorer(PlainScorer):
    """The probability that a text-classification model gives to its toxic labels.

    spec: hub id or folder, optionally followed by `#` and the toxic labels, comma-separated:
    `hf:unitary/toxic-bert`, `hf:./my-model#LABEL_1`. Without them, labels with a usual name (toxic,
    hate, offensive...) are taken; of two unnamed labels, LABEL_1.

    A model of exclusive labels gives their summed softmax; a multi-label one (sigmoid outputs) the
    largest. Texts longer than the model's context are cut at its end. Raises ScorerError if the
    model cannot be loaded whole, its head included, and InputError for labels that it does not have
    and a device that cannot be used.
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
        self._toxic = _toxic_columns(model, config.id2label, labels)
        multi_label = config.problem_type == "multi_label_classification"
        self._multi_label = multi_label or config.num_labels == 1
        positions = getattr(config, "max_position_embeddings", 10**9)
        if "roberta" in config.model_type:  # its first positions are the padding's
            positions -= config.pad_token_id + 1
        self._max_tokens = min(self._tokenizer.model_max_length, positions)
        if self._max_tokens < _LEAST_TOKENS:
            raise ValueError(f"reads {self._max_tokens} tokens of a text; it needs {_LEAST_TOKENS}")
        folder = Path(model)
        revision = _digest(folder) if folder.is_dir() else getattr(config, "_commit_hash", None)
        chosen = ",".join(config.id2label[i] for i in self._toxic)
        self.name = f"hf:{model}{f'@{revision[:8]}' if revision else ''}#{chosen}"
        self._score_batch([_PROBE, _PROBE + " " + _PROBE])

    def score(self, texts: Sequence[str]) -> Floats:
        return in_batches(self._score_batch, texts)

    def close(self) -> None:
        del self._model

    def _score_batch(self, texts: list[str]) -> Floats:
        if self._tokenizer.pad_token is None and len(texts) > 1:
            # No padding token, no padding: one text at a time.
            return np.concatenate([self._score_batch([text]) for text in texts])
        inputs: Any = self._tokenizer(
            texts,
            return_tensors="pt",
            padding=len(texts) > 1,
            truncation=True,
            max_length=self._max_tokens,
        )
        with torch.inference_mode():
            logits = self._model(**inputs.to(self._device)).logits.double()
        if self._multi_label:
            scores = logits.sigmoid()[:, self._toxic].amax(dim=-1)
        else:
            scores = logits.softmax(dim=-1)[:, self._toxic].sum(dim=-1).clamp(max=1.0)
        return np.asarray(scores.cpu().numpy(), dtype=np.float64)


def _digest(folder: Path) -> str:
    """Of the model and tokenizer in a folder: training it again makes it another scorer."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()


def _toxic_columns(model: str, id2label: dict[int, str], wanted: str) -> list[int]:
    if wanted:
        by_name = {label: i for i, label in id2label.items()}
        missing = [label for label in wanted.split(",") if label not in by_name]
        if missing:
            raise InputError(
                f"scorer hf:{model}: no label {missing[0]!r}; it has {', '.join(by_name)}"
            )
        return [by_name[label] for label in wanted.split(",")]
    names = {
        i: label.lower().translate({45: None, 95: None, 32: None}) for i, label in id2label.items()
    }
    toxic = [i for i, name in names.items() if name in _TOXIC_LABELS]
    if toxic:
        return toxic
    if len(names) == 1:
        return [0]
    if set(id2label.values()) == {"LABEL_0", "LABEL_1"}:
        _LOG.warning(
            "scorer hf:%s: its two labels have no names; LABEL_1 is taken as toxic "
            "(append #LABEL_0 if it is the other)", model,
        )  # fmt: skip
        return [1]
    raise InputError(
        f"scorer hf:{model}: which labels mean toxic? append some of them behind '#', as in "
        f"hf:{model}#{id2label[0]}; it has {', '.join(id2label.values())}"
    )
