"""A judge that reads words in their order: the LSTM of the package toxic-comment-classifier (MIT).

    pip install --no-deps -c constraints.txt toxic-comment-classifier h5py
    tide judge runs/RUN --judges benchmarks/lstm_judge.py:LSTMJudge

It was trained on the 159,571 comments of Jigsaw's training part (its tokenizer counted them), of
which no scorer of TIDE read a comment as such; ParaDetox, which `pocket` and `exchange` read, has
sentences of them. The package needs TensorFlow. Here its weights run in PyTorch, and its tokenizer
is rebuilt from its plain data, so that no code of the pickled file runs. The example of the
package's page has the same scores to the sixth digit.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from tide.scorers.base import Floats
from tide.scorers.disguises import REVISION, ReadingScorer

PACKAGE = "toxic-comment-classifier"
LENGTH = 100  # words that are read: the last ones
VOCABULARY = 20_000
BATCH = 256
# The plain classes in the pickled tokenizer.
PLAIN = {("collections", "OrderedDict"), ("collections", "defaultdict"), ("builtins", "int")}


class Tokenizer:
    """Holds the attributes of Keras' tokenizer."""

    word_index: Mapping[str, int]
    filters: str


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name == "Tokenizer":
            return Tokenizer
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not expected in a tokenizer")


class LSTMJudge(ReadingScorer):
    """Probability that a comment is toxic, by a bidirectional LSTM over its words (English)."""

    languages = ("en",)

    def __init__(self) -> None:
        folder = Path(str(distribution(PACKAGE).locate_file("toxic_classifier/model")))
        with (folder / "tokenizer.pickle").open("rb") as file:
            tokenizer: Tokenizer = PlainUnpickler(file).load()
        self._word_index = tokenizer.word_index
        self._separators = str.maketrans(dict.fromkeys(tokenizer.filters, " "))
        with h5py.File(folder / "model.weights.h5") as weights:
            self._load(weights)
        self.name = f"lstm@{version(PACKAGE)}-{REVISION}"

    def _load(self, weights: h5py.File) -> None:
        def read(name: str) -> Tensor:
            return torch.from_numpy(np.asarray(weights[f"layers/{name}"]))

        self._embeddings = read("embedding/vars/0")
        self._lstm = nn.LSTM(50, 50, batch_first=True, bidirectional=True)
        state = {}
        for suffix, name in (("", "forward"), ("_reverse", "backward")):
            cell = f"bidirectional/{name}_layer/cell/vars"
            state[f"weight_ih_l0{suffix}"] = read(f"{cell}/0").T
            state[f"weight_hh_l0{suffix}"] = read(f"{cell}/1").T
            state[f"bias_ih_l0{suffix}"] = read(f"{cell}/2")
            state[f"bias_hh_l0{suffix}"] = torch.zeros(200)
        self._lstm.load_state_dict(state)
        self._hidden = read("dense/vars/0"), read("dense/vars/1")
        self._toxic = read("dense_1/vars/0")[:, 0], read("dense_1/vars/1")[0]

    def _read(self, texts: list[str]) -> Floats:
        with torch.inference_mode():
            parts = [self._scores(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]
            return torch.cat(parts).double().numpy()

    def _scores(self, texts: list[str]) -> Tensor:
        vectors = self._embeddings[torch.tensor([self._numbers(text) for text in texts])]
        states, _ = self._lstm(vectors)
        weights, bias = self._hidden
        hidden = torch.relu(states.amax(dim=1) @ weights + bias)
        weights, bias = self._toxic
        return torch.sigmoid(hidden @ weights + bias)

    def _numbers(self, text: str) -> list[int]:
        """Return the numbers of a text's last words, after zeros."""
        numbers = list(self._known(text))[-LENGTH:]
        return [0] * (LENGTH - len(numbers)) + numbers

    def _known(self, text: str) -> Iterator[int]:
        for word in text.lower().translate(self._separators).split():
            number = self._word_index.get(word, VOCABULARY)
            if number < VOCABULARY:
                yield number
