"""Classifiers in this process: `hf:ID_OR_FOLDER`, and `detoxify:VARIANT` (Unitary's Detoxify).

A text longer than the model's context is read in overlapping windows, of which the worst counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tide.core.errors import InputError, ScorerError, guarded
from tide.core.optional import require
from tide.core.pretrained import check_tokenizer, find_device, load_pretrained
from tide.plugins.options import checked
from tide.scorers.base import HEALTH_TEXT, Attributed, Floats, PlainScorer
from tide.scorers.labels import how_joined, toxic_columns

# Least context of a model, in tokens; less is too little to score.
_LEAST_TOKENS = 16
_BATCH = 64  # windows


class HuggingFaceScorer(PlainScorer):
    """The probability that a text-classification model gives to its toxic labels.

    spec: hub id or folder, optionally followed by `#` and the toxic labels, comma-separated:
    `hf:unitary/toxic-bert`, `hf:./my-model#LABEL_1`. Without them, labels with a usual name (toxic,
    hate, offensive...) are taken; of two unnamed labels, LABEL_1.

    A model of exclusive labels gives their summed softmax, or with `#max:LABEL,LABEL` the largest;
    its toxic labels are its attributes, where there are several. A multi-label one (sigmoid
    outputs) gives the largest of them, and all its labels are attributes. A text longer than the
    model's context is read in windows that overlap by half, of which the worst counts.

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
        self._windows = Windows(self._tokenizer, config)
        folder = Path(model)
        revision = digest_of(folder) if folder.is_dir() else getattr(config, "_commit_hash", None)
        chosen = ",".join(names[i] for i in self._toxic)
        chosen = f"max:{chosen}" if how == "max" and not self._multi_label else chosen
        self.name = f"hf:{model}{f'@{revision[:8]}' if revision else ''}#{chosen}"
        self.score([HEALTH_TEXT, HEALTH_TEXT + " " + HEALTH_TEXT])

    def score(self, texts: Sequence[str]) -> Floats:
        rows, owners = self._windows.read(texts, self._probabilities)
        return worst(self._chosen(rows.reshape(-1, self._labels)), owners, len(texts))

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        rows, owners = self._windows.read(texts, self._probabilities)
        rows = rows.reshape(-1, self._labels)
        columns = zip(self.attributes, self._reported, strict=True)
        return Attributed(
            worst(self._chosen(rows), owners, len(texts)),
            {name: worst(rows[:, i], owners, len(texts)) for name, i in columns},
        )

    def close(self) -> None:
        del self._model

    def _chosen(self, rows: Floats) -> Floats:
        toxic = rows[:, self._toxic]
        scores = toxic.max(axis=1, initial=0.0) if self._largest else toxic.sum(axis=1)
        return np.asarray(scores.clip(max=1.0), dtype=np.float64)

    @torch.inference_mode()
    def _probabilities(self, inputs: Any) -> Floats:
        """The probability of every label, shape (windows, labels)."""
        logits = self._model(**inputs.to(self._device)).logits.double()
        rows = logits.sigmoid() if self._multi_label else logits.softmax(dim=-1)
        return np.asarray(rows.cpu().numpy(), dtype=np.float64)


class Windows:
    """Reads texts by a classifier's tokenizer: long ones in windows that overlap by half.

    Raises ValueError for a model that reads fewer than 16 tokens.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        positions = getattr(config, "max_position_embeddings", 10**9)
        if "roberta" in config.model_type:  # its first positions are the padding's
            positions -= config.pad_token_id + 1
        self._tokenizer = tokenizer
        self._tokens = min(tokenizer.model_max_length, positions)
        if self._tokens < _LEAST_TOKENS:
            raise ValueError(f"reads {self._tokens} tokens of a text; it needs {_LEAST_TOKENS}")

    def read(
        self, texts: Sequence[str], score: Callable[[Any], Floats]
    ) -> tuple[Floats, list[int]]:
        """The result of `score` for each window, and the number of the window's text.

        score: of padded inputs of the model; it gives a row a window.
        """
        owners: list[int] = []
        windows: list[dict[str, list[int]]] = []
        if texts:
            read = self._tokenizer(
                list(texts),
                truncation=True,
                max_length=self._tokens,
                stride=self._tokens // 2,
                return_overflowing_tokens=True,
                split_special_tokens=True,  # a text that holds "[SEP]" does not end there
            )
            owners = read.pop("overflow_to_sample_mapping")
            windows = [{name: read[name][i] for name in read} for i in range(len(owners))]
        # Without a padding token, one window at a time.
        size = _BATCH if self._tokenizer.pad_token is not None else 1
        rows = [
            score(self._tokenizer.pad(windows[i : i + size], padding=size > 1, return_tensors="pt"))
            for i in range(0, len(windows), size)
        ]
        return np.concatenate(rows) if rows else np.zeros(0), owners


def worst(values: Floats, owners: Sequence[int], count: int) -> Floats:
    """The largest value of each text's windows, shape (count,)."""
    largest = np.zeros(count)
    np.maximum.at(largest, np.asarray(owners, dtype=np.int64), values)
    return largest


def digest_of(folder: Path) -> str:
    """Digest of a folder's model and tokenizer, so that a retrained model is another scorer."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")]):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()


_SEVEN = ("en", "fr", "es", "it", "pt", "tr", "ru")


class DetoxifyScorer(PlainScorer):
    """The `toxicity` output of a Detoxify model; all its outputs are attributes.

    variant: `original`, `unbiased` or `multilingual`, optionally followed by `#` and other outputs
    to take, comma-separated, of which the largest counts: `detoxify:original#threat,insult`.

    The checkpoint comes from the project's releases, at first use. The package would unpickle it;
    here it is read with `weights_only`, which runs no code from the file.
    A text longer than the model's context is read in windows, as by `hf`.
    Raises InputError for an unknown variant or output, ScorerError if the checkpoint cannot be
    downloaded or read, or lacks weights.
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
        """The probability of every output, shape (windows, outputs)."""
        logits = self._model(**inputs.to(self._device))[0]
        return np.asarray(logits.double().sigmoid().cpu().numpy(), dtype=np.float64)
