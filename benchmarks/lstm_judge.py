"""A judge that reads words in their order: the LSTM of the package toxic-comment-classifier (MIT).

    pip install --no-deps -c constraints.txt toxic-comment-classifier h5py
    tide judge runs/RUN --judges benchmarks/lstm_judge.py:LSTMJudge

It was trained on the 159,571 comments of Jigsaw's training part (its tokenizer counted them), of
which no scorer of TIDE read a comment as such; ParaDetox, which `pocket` and `exchange` read, has
sentences of them. The package needs TensorFlow. Here its weights run in PyTorch, and the words of
its tokenizer are read from the pickled file, which is never unpickled. The example of the
package's page has the same scores to the sixth digit.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tide.core.errors import InputError, MissingDependencyError
from tide.scorers.base import Floats
from tide.scorers.disguises import REVISION, ReadingScorer

PACKAGE = "toxic-comment-classifier"
LENGTH = 100  # words that are read: the last ones
VOCABULARY = 20_000
BATCH = 256
RECALL = ("BINGET", "LONG_BINGET")  # instructions that repeat an earlier value


def read_tokenizer(pickled: bytes) -> tuple[dict[str, int], str]:
    """Return the number of each word, and the separators, of a pickled tokenizer of Keras.

    The instructions of the pickle are read and never executed. A string is followed by a string
    only among the tokenizer's attributes, and no word has an underscore, which is a separator.
    """
    values: list[Any] = []
    memory: list[Any] = []
    newest: Any = None
    for instruction, argument, _ in pickletools.genops(pickled):
        if instruction.name == "MEMOIZE":
            memory.append(newest)
            continue
        newest = memory[argument] if instruction.name in RECALL else argument
        if isinstance(newest, str | int) and instruction.name != "FRAME":
            values.append(newest)
    start, end = values.index("word_index") + 1, values.index("index_word")
    numbers = dict(zip(values[start:end:2], values[start + 1 : end : 2], strict=True))
    if not all(isinstance(n, int) and isinstance(word, str) for word, n in numbers.items()):
        raise InputError("tokenizer: expected a number after each word of word_index")
    separators = next(
        second
        for first, second in pairwise(values)
        if first == "filters" and isinstance(second, str)
    )
    return numbers, separators


class LSTMJudge(ReadingScorer):
    """Probability that a comment is toxic, by a bidirectional LSTM over its words (English)."""

    languages = ("en",)

    def __init__(self) -> None:
        try:
            folder = Path(str(distribution(PACKAGE).locate_file("toxic_classifier/model")))
        except PackageNotFoundError as error:
            raise MissingDependencyError(
                f"LSTMJudge: the package {PACKAGE} is missing; "
                f"pip install --no-deps {PACKAGE}==0.3.0 h5py"
            ) from error
        self._word_index, separators = read_tokenizer((folder / "tokenizer.pickle").read_bytes())
        self._separators = str.maketrans(dict.fromkeys(separators, " "))
        import h5py  # noqa: PLC0415  (the test does without it)

        with h5py.File(folder / "model.weights.h5") as weights:
            self._load(weights)
        self.name = f"lstm@{version(PACKAGE)}-{REVISION}"

    def _load(self, weights: Mapping[str, Any]) -> None:
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
