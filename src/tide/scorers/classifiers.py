"""Classifiers in this process: `hf:ID_OR_FOLDER`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tide.core.concurrency import is_exiting
from tide.core.errors import InputError, ScorerError, guarded
from tide.core.fingerprints import weights_digest
from tide.core.pretrained import check_tokenizer, find_device, load_pretrained
from tide.scorers.base import HEALTH_TEXT, Attributed, AttributedScorer, Floats
from tide.scorers.services import check_exclusive, toxic_columns

_BATCH = 64  # windows


class HuggingFaceScorer(AttributedScorer):
    """The probability of the toxic labels of a text-classification model.

    spec: hub id or folder, optionally followed by `#` and the toxic labels, comma-separated:
    `hf:unitary/toxic-bert`, `hf:./my-model#LABEL_1`. By default, labels with a common name (toxic,
    hate, offensive...) are toxic.

    With exclusive labels (softmax) the score is the summed probability of the toxic labels; two or
    more toxic labels are also attributes. With independent labels (sigmoid) the score is the
    largest probability of a toxic label, and all labels are attributes. A text longer than the
    model's context is scored in windows that overlap by half; the highest score counts.

    Raises ScorerError if the model or its head cannot be loaded completely, and InputError for a
    regression, for unknown labels, and for exclusive labels that are all toxic.
    """

    def __init__(self, spec: str) -> None:
        from transformers import AutoModelForSequenceClassification  # noqa: PLC0415  (slow import)

        model, _, labels = spec.partition("#")
        self._device = find_device("auto")
        with guarded(ScorerError, f"scorer hf:{model}: cannot be loaded"):
            tokenizer, loaded = load_pretrained(
                AutoModelForSequenceClassification, model, self._device, torch.float32
            )
            check_tokenizer(tokenizer, len(loaded.get_input_embeddings().weight))
        config = loaded.config
        names = [str(config.id2label[i]) for i in range(len(config.id2label))]
        toxic = toxic_columns(f"hf:{model}", names, labels)
        if config.problem_type == "regression":
            raise InputError(f"scorer hf:{model}: a regression gives no probabilities")
        # As transformers' pipeline decides it.
        exclusive = config.num_labels > 1 and config.problem_type != "multi_label_classification"
        if exclusive:
            check_exclusive(f"hf:{model}", names, toxic)
        self._toxic, self._exclusive = toxic, exclusive
        reported = toxic if exclusive else [*range(len(names))]
        self._reported = reported if len(reported) > 1 else []
        self.attributes = tuple(names[i] for i in self._reported)
        if self.attributes and not exclusive:
            self.highest_of = tuple(names[i] for i in toxic)
        self._tokens = _context_of(loaded, tokenizer)
        if config.pad_token_id is None:  # GPT-2 searches for the last token before the padding
            config.pad_token_id = tokenizer.pad_token_id
        self._model, self._tokenizer = loaded, tokenizer
        chosen = ",".join(names[i] for i in toxic)
        self.name = f"hf:{model}{revision_of(model, config)}#{chosen}"
        with guarded(ScorerError, f"scorer hf:{model}: cannot be used"):
            self.score([HEALTH_TEXT, HEALTH_TEXT + " " + HEALTH_TEXT])

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        if not texts:
            return Attributed(np.zeros(0), {name: np.zeros(0) for name in self.attributes})
        read = self._tokenizer(
            list(texts),
            truncation=True,
            max_length=self._tokens,
            stride=self._tokens // 2,
            return_overflowing_tokens=True,
            split_special_tokens=True,  # "[SEP]" in a text must not end it
        )
        owners = read.pop("overflow_to_sample_mapping")
        windows = [{name: read[name][i] for name in read} for i in range(len(owners))]
        # A tokenizer without a padding token cannot pad a batch of windows.
        size = _BATCH if self._tokenizer.pad_token is not None else 1
        batches = [windows[i : i + size] for i in range(0, len(windows), size)]
        rows = np.concatenate([self._probabilities(batch) for batch in batches])
        toxic = rows[:, self._toxic]
        scores = toxic.sum(axis=1) if self._exclusive else toxic.max(axis=1)
        columns = zip(self.attributes, self._reported, strict=True)
        attributes = {name: rows[:, i] for name, i in columns}
        return Attributed(scores.clip(max=1.0), attributes).worst(owners, len(texts))

    def close(self) -> None:
        del self._model

    @torch.inference_mode()
    def _probabilities(self, windows: list[dict[str, list[int]]]) -> Floats:
        """Return the probability of every label, shape (windows, labels)."""
        if is_exiting():
            raise ScorerError("Python exits")
        inputs = self._tokenizer.pad(windows, padding=len(windows) > 1, return_tensors="pt")
        logits = self._model(**inputs.to(self._device))[0].double()
        rows = logits.softmax(dim=-1) if self._exclusive else logits.sigmoid()
        return np.asarray(rows.cpu().numpy(), dtype=np.float64)


def _context_of(model: Any, tokenizer: Any) -> int:
    """Return how many tokens a model reads."""
    positions = getattr(model.config, "max_position_embeddings", 10**9)
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        # RoBERTa and its kin begin to count positions after the padding's.
        if name.endswith("position_embeddings") and padding is not None:
            positions -= padding + 1
    return int(min(tokenizer.model_max_length, positions))


def revision_of(model: str, config: Any) -> str:
    """Return `@` and the revision of a model: the hub's commit, or "" if the commit is unknown.

    The revision of a folder is a digest of its files, so a retrained model gets a new scorer name.
    """
    if not (folder := Path(model)).is_dir():
        commit = getattr(config, "_commit_hash", None)
        return f"@{commit[:8]}" if commit else ""
    return f"@{weights_digest(folder)[:8]}"
