"""`sentence`: a small transformer that reads whole sentences, unlike `pocket`, which counts words.

The model consists of the first layers of all-MiniLM-L6-v2, with the part of its vocabulary that
occurs in English comments and prose. `models/train_sentence_scorer.py` trains it with torch and
reads the file back through this module. The file holds the weights as integers from -127 to 127
with a scale for each row, the vocabulary as a tensor of bytes, and all other data as metadata.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tide.core.errors import ScorerError, guarded
from tide.pocket import SENTENCE
from tide.scorers.base import Floats
from tide.scorers.language import ReadingScorer
from tide.scorers.pocket import Description, normalize, sigmoid

VOCABULARY = "vocabulary"  # the tensor with the wordpieces, one per line, in UTF-8
SCALE = ".scale"
_BATCH = 8  # windows; a larger batch does not fit into a processor's cache
# As in BERT's tokenizer, a longer word is unknown, and each Chinese character is a word.
_LONGEST_WORD = 100
_CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)

Array = NDArray[np.float32]

_Size = Annotated[int, Field(ge=1, le=100_000)]
_Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class Shape(Description):
    """Sizes of the network, and the map from its output to a probability.

    tokens: size of a window, including the two tokens that mark its ends. A longer text is scored
    in windows that overlap by half; the highest score counts. scale, offset: the logit is
    `scale * output + offset`.
    """

    entry = "sentence"

    # Raise the number when the network or the tokenization changes.
    format: Literal["tide-sentence-1"] = "tide-sentence-1"
    vocabulary: _Size
    width: _Size
    inner: _Size
    heads: int = Field(ge=1, le=256)
    layers: int = Field(ge=1, le=48)
    tokens: int = Field(ge=8, le=1024)
    scale: _Finite = 1.0
    offset: _Finite = 0.0


class Network:
    """A BERT encoder, and a linear layer on the mean and maximum of its token vectors.

    It runs on NumPy alone, so that a gateway needs no torch. weights: arrays by their names in
    `models/train_sentence_scorer.py`. Raises ValueError for missing or misshapen weights.
    """

    def __init__(self, shape: Shape, weights: Mapping[str, Array]) -> None:
        width, inner = shape.width, shape.inner
        sizes = {
            "self_attn.in_proj_weight": (3 * width, width),
            "self_attn.in_proj_bias": (3 * width,),
            "self_attn.out_proj.weight": (width, width),
            "self_attn.out_proj.bias": (width,),
            "linear1.weight": (inner, width),
            "linear1.bias": (inner,),
            "linear2.weight": (width, inner),
            "linear2.bias": (width,),
            **{f"norm{n}.{part}": (width,) for n in (1, 2) for part in ("weight", "bias")},
        }
        wanted = {
            "tokens.weight": (shape.vocabulary, width),
            "positions.weight": (shape.tokens, width),
            "norm.weight": (width,),
            "norm.bias": (width,),
            "head.weight": (1, 2 * width),
            "head.bias": (1,),
            **{
                f"encoder.layers.{layer}.{name}": size
                for layer in range(shape.layers)
                for name, size in sizes.items()
            },
        }
        if width % shape.heads:
            raise ValueError(f"its width {width} is not a multiple of its {shape.heads} heads")
        if unexpected := weights.keys() ^ wanted.keys():
            raise ValueError(f"its weight {min(unexpected)} is missing or belongs to no layer")
        for name, size in wanted.items():
            if weights[name].shape != size:
                raise ValueError(f"its weight {name} has shape {weights[name].shape}, not {size}")
        self._heads, self._layers, self.weights = shape.heads, shape.layers, weights

    def __call__(self, ids: NDArray[np.int64]) -> Array:
        """Return outputs, shape (n,), for token ids, shape (n, T), without padding."""
        weights, (n, length) = self.weights, ids.shape
        vectors = weights["tokens.weight"][ids] + weights["positions.weight"][:length]
        # One array for all windows, (n * T, width): one matrix product is faster than n products.
        vectors = self._normalized(vectors.reshape(n * length, -1), "norm")
        for layer in range(self._layers):
            name = f"encoder.layers.{layer}"
            attended = self._attended(vectors, n, f"{name}.self_attn")
            vectors = self._normalized(vectors + attended, f"{name}.norm1")
            inner = _gelu(self._linear(vectors, f"{name}.linear1"))
            added = self._linear(inner, f"{name}.linear2")
            vectors = self._normalized(vectors + added, f"{name}.norm2")
        vectors = vectors.reshape(n, length, -1)
        pooled = np.concatenate([vectors.mean(1), vectors.max(1)], axis=1)
        return self._linear(pooled, "head")[:, 0]

    def _attended(self, vectors: Array, n: int, name: str) -> Array:
        width = vectors.shape[1]
        head_width = width // self._heads
        rows = vectors @ self.weights[f"{name}.in_proj_weight"].T
        rows += self.weights[f"{name}.in_proj_bias"]
        query, key, value = rows.reshape(n, -1, 3, self._heads, head_width).transpose(2, 0, 3, 1, 4)
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(head_width**0.5)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        attended = (shares @ value).transpose(0, 2, 1, 3).reshape(len(vectors), width)
        return self._linear(attended, f"{name}.out_proj")

    def _linear(self, vectors: Array, name: str) -> Array:
        weights = self.weights
        return np.asarray(vectors @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def _normalized(self, vectors: Array, name: str) -> Array:
        centred = vectors - vectors.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(1e-12))
        return np.asarray(scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])


def _gelu(x: Array) -> Array:
    """Return `x` times the normal CDF at `x`, in float32.

    NumPy has no error function. Formula 7.1.26 of Abramowitz and Stegun has an error below 1.5e-7.
    """
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series: Any = np.float32(1.061405429)
    for term in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = series * t + np.float32(term)
    tail = np.float32(0.5) * series * t * np.exp(-z * z)  # the probability beyond |x|
    return np.asarray(x * np.where(x > 0, 1 - tail, tail))


class WordPieces:
    """BERT's uncased tokenizer with the vocabulary `pieces`.

    Its output equals that of BertNormalizer, BertPreTokenizer and WordPiece of `tokenizers`.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._ids = {piece: i for i, piece in enumerate(pieces)}
        self._unknown, self._first, self._last = (
            self._ids[f"[{m}]"] for m in ("UNK", "CLS", "SEP")
        )
        self._longest = max(map(len, pieces))
        self._of_word = lru_cache(maxsize=2**14)(self._read)

    def ids(self, text: str) -> list[int]:
        return [i for word in bert_words(text) for i in self._of_word(word)]

    def windows(self, text: str, tokens: int) -> list[list[int]]:
        """Split the ids of a text into windows that overlap by half, with [CLS] and [SEP]."""
        ids, room = self.ids(normalize(text)), tokens - 2
        step = room // 2
        starts = range(0, max(len(ids) - step, 1), step) if len(ids) > room else (0,)
        return [[self._first, *ids[i : i + room], self._last] for i in starts]

    def _read(self, word: str) -> tuple[int, ...]:
        """Split a word into the longest pieces, from the left; return [UNK] if that fails."""
        pieces: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST_WORD:
            before = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if (piece := self._ids.get(before + word[start:end])) is not None:
                    pieces.append(piece)
                    start = end
                    break
            else:
                break
        return tuple(pieces) if start == len(word) else (self._unknown,)


def bert_words(text: str) -> list[str]:
    """Split a text into words and punctuation marks, in lower case and without accents."""
    characters = []
    for character in text:
        if character in "\t\n\r":
            characters.append(" ")
        elif character != "\ufffd" and unicodedata.category(character) not in ("Cc", "Cf", "Co"):
            characters.append(f" {character} " if _is_chinese(character) else character)
    plain = unicodedata.normalize("NFD", "".join(characters))
    plain = "".join(
        character for character in plain if unicodedata.category(character) != "Mn"
    ).lower()
    apart = (f" {character} " if _is_mark(character) else character for character in plain)
    return "".join(apart).split()


def _is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _CHINESE)


def _is_mark(character: str) -> bool:
    if character.isascii():
        return character in string.punctuation
    return unicodedata.category(character).startswith("P")


def _unpacked(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Array]:
    """Return the weights in float32, with int8 weights multiplied by their scales."""
    weights = {}
    for name, stored in tensors.items():
        if name.endswith(SCALE):
            continue
        values = stored.astype(np.float32)
        if stored.dtype == np.int8:
            values = values * tensors[name + SCALE].astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"{name}: a weight is not finite")
        weights[name] = values
    return weights


class SentenceScorer(ReadingScorer):
    """Probability that a reader finds an English text toxic, by a transformer of a few layers.

    weights: a file written by `models/train_sentence_scorer.py`; the bundled file by default.
    Raises ScorerError if the file is missing or damaged.
    """

    languages = ("en",)
    pace = "8"

    def __init__(self, weights: str | Path | None = None) -> None:
        path = SENTENCE if weights is None else Path(weights)
        with guarded(ScorerError, f"sentence scorer: cannot use {path}"):
            self.shape, tensors, revision = Shape.read(path)
            self.pieces = bytes(tensors.pop(VOCABULARY)).decode().split("\n")
            if len(self.pieces) != self.shape.vocabulary:
                count = self.shape.vocabulary
                raise ValueError(f"its vocabulary has {len(self.pieces)} pieces, not {count}")
            self.network = Network(self.shape, _unpacked(tensors))
            self.reader = WordPieces(self.pieces)
        self.name = f"sentence@{revision}"

    def _read(self, texts: list[str]) -> Floats:
        return sigmoid(self.shape.scale * self.outputs(texts) + self.shape.offset)

    def outputs(self, texts: Sequence[str]) -> Floats:
        """Return, for each text, the highest of the network's outputs for its windows.

        Windows of equal length share a batch without padding, so no window affects another output.
        """
        windows = [
            (i, window)
            for i, text in enumerate(texts)
            for window in self.reader.windows(text, self.shape.tokens)
        ]
        worst = np.full(len(texts), -np.inf)
        windows.sort(key=lambda pair: len(pair[1]))
        for _, alike in groupby(windows, key=lambda pair: len(pair[1])):
            rows = list(alike)
            for start in range(0, len(rows), _BATCH):
                owners, batch = zip(*rows[start : start + _BATCH], strict=True)
                np.maximum.at(worst, list(owners), self.network(np.array(batch)))
        return worst
