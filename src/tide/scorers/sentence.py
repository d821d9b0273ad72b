"""`sentence`: a small transformer that reads a text as a sentence, where `pocket` counts words.

It is made of the first layers of all-MiniLM-L6-v2 and the part of its vocabulary that occurs in
English comments and prose. `scripts/train_sentence_scorer.py` trains it on this module's network
and reads its file back through it. One file holds everything: the weights are whole numbers from
-127 to 127 with a scale for each row, the vocabulary is a tensor of bytes, and the metadata
describes the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open
from torch import Tensor, nn

from tide.core.errors import ScorerError, guarded
from tide.core.validation import problem
from tide.pocket import SENTENCE
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.language import warn_of_other_languages
from tide.scorers.pocket import normalize
from tide.scorers.readings import score_readings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMAT = "tide-sentence-1"  # raise the number when the network or the reading of a text changes
METADATA = "sentence"
VOCABULARY = "vocabulary"  # the tensor with the wordpieces, one a line, in UTF-8
_SCALE = ".scale"
# Windows that are read at once.
_BATCH = 32

_Size = Annotated[int, Field(ge=1, le=100_000)]
_Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class Shape(BaseModel):
    """The network, and how its output becomes a probability.

    tokens: read at once, with the two that mark the ends; a longer text is read in windows that
    overlap by half, of which the worst counts. scale, offset: the logit is
    `scale * output + offset`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: str = FORMAT
    vocabulary: _Size
    width: _Size
    inner: _Size
    heads: int = Field(ge=1, le=256)
    layers: int = Field(ge=1, le=48)
    tokens: int = Field(ge=8, le=1024)
    scale: _Finite = 1.0
    offset: _Finite = 0.0


class Network(nn.Module):
    """A BERT encoder; the mean and the maximum of its vectors, and a linear layer."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        width, epsilon = shape.width, 1e-12
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Embedding(shape.tokens, width)
        self.norm = nn.LayerNorm(width, epsilon)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(
            width, shape.heads, shape.inner, dropout, "gelu", epsilon, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(2 * width, 1)

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        """ids: (n, T). padding: (n, T), true for tokens to ignore. Outputs: (n,)."""
        vectors = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        vectors = self.encoder(self.dropout(self.norm(vectors)), src_key_padding_mask=padding)
        if padding is None:
            mean, most = vectors.mean(1), vectors.amax(1)
        else:
            kept = ~padding[:, :, None]
            mean = (vectors * kept).sum(1) / kept.sum(1)
            most = vectors.masked_fill(~kept, -torch.inf).amax(1)
        output: Tensor = self.head(self.dropout(torch.cat([mean, most], dim=1)))
        return output[:, 0]


class TokenReader:
    """Texts to windows of token ids, as the network reads them."""

    def __init__(self, pieces: Sequence[str], tokens: int) -> None:
        self._tokenizer = wordpieces(pieces)
        self._first, self._last = pieces.index("[CLS]"), pieces.index("[SEP]")
        self._room = tokens - 2

    def windows(self, text: str) -> list[list[int]]:
        """The ids of a text, in windows that overlap by half."""
        ids: list[int] = self._tokenizer.encode(normalize(text), add_special_tokens=False).ids
        step = self._room // 2
        starts = range(0, max(len(ids) - step, 1), step) if len(ids) > self._room else (0,)
        return [[self._first, *ids[i : i + self._room], self._last] for i in starts]


def wordpieces(pieces: Sequence[str]) -> Tokenizer:
    """BERT's tokenizer of lower-case text with the vocabulary `pieces`."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers  # noqa: PLC0415  (slow)

    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def packed(network: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    """The weights as they are stored: matrices in 8 bits with a scale a row, the rest in 16."""
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, weight in network.state_dict().items():
        values = weight.detach().double().numpy()
        if values.ndim < 2:
            tensors[name] = values.astype(np.float16)
            continue
        scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-8) / 127
        scale = np.maximum(scale, 6e-8).astype(np.float16)  # the smallest that 16 bits hold
        whole = np.clip(np.rint(values / scale.astype(np.float64)), -127, 127)
        tensors[name], tensors[name + _SCALE] = whole.astype(np.int8), scale
    return tensors


def _unpacked(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Tensor]:
    """The weights that `packed` stored. Raises ValueError for values that are not finite."""
    weights = {}
    for name, stored in tensors.items():
        if name.endswith(_SCALE):
            continue
        values = stored.astype(np.float32)
        if stored.dtype == np.int8:
            values = values * tensors[name + _SCALE].astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"its weight {name} holds values that are not finite")
        weights[name] = torch.from_numpy(values)
    return weights


class SentenceScorer(PlainScorer):
    """Probability that a reader finds an English text toxic, by a transformer of a few layers.

    weights: a file written by `scripts/train_sentence_scorer.py`; the bundled one by default.
    Raises ScorerError if the file is missing or damaged.
    """

    languages = ("en",)

    def __init__(self, weights: str | Path | None = None) -> None:
        path = SENTENCE if weights is None else Path(weights)
        with guarded(ScorerError, f"sentence scorer: cannot use {path}"):
            revision = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
            with safe_open(path, framework="numpy") as file:
                self.shape = _read_shape(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.pieces = bytes(tensors.pop(VOCABULARY)).decode().split("\n")
            if len(self.pieces) != self.shape.vocabulary:
                raise ValueError(f"its vocabulary has {len(self.pieces)} pieces")
            self.network = Network(self.shape)
            self.network.load_state_dict(_unpacked(tensors))
            self.network.eval().requires_grad_(False)
            self.reader = TokenReader(self.pieces, self.shape.tokens)
        self.name = f"sentence@{revision}"

    def score(self, texts: Sequence[str]) -> Floats:
        """Probability of toxicity, shape (len(texts),), in [0, 1]; a text's score is its own."""
        if len(texts) == 0:
            return np.zeros(0)
        warn_of_other_languages("sentence", texts)
        return score_readings(self._probabilities, texts)

    def _probabilities(self, texts: list[str]) -> Floats:
        logits = self.shape.scale * self.outputs(texts) + self.shape.offset
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0))), dtype=np.float64)

    def outputs(self, texts: Sequence[str]) -> Floats:
        """The network's output for each text: that of its worst window."""
        rows = [(i, window) for i, text in enumerate(texts) for window in self.reader.windows(text)]
        worst = np.full(len(texts), -np.inf)
        outputs = network_outputs(self.network, [window for _, window in rows])
        np.maximum.at(worst, [i for i, _ in rows], outputs)
        return worst


@torch.inference_mode()
def network_outputs(network: nn.Module, windows: Sequence[Sequence[int]]) -> Floats:
    """The network's output for each window, shape (len(windows),).

    Those of one length share a batch, so that none is padded: its score does not depend on others.
    """
    found = np.zeros(len(windows))
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))
    for _, alike in groupby(order, key=lambda i: len(windows[i])):
        rows = list(alike)
        for start in range(0, len(rows), _BATCH):
            batch = rows[start : start + _BATCH]
            ids = torch.tensor([windows[i] for i in batch])
            found[batch] = network(ids).double().numpy()
    return found


def _read_shape(metadata: Mapping[str, str]) -> Shape:
    """The network of a weights file. Raises ScorerError if it is of another format."""
    if METADATA not in metadata:
        raise ScorerError(f"sentence scorer: metadata lacks {METADATA!r}")
    try:
        shape = Shape.model_validate_json(metadata[METADATA])
    except ValidationError as error:
        raise ScorerError(f"sentence scorer: bad metadata: {problem(error)}") from None
    if shape.format != FORMAT:
        raise ScorerError(f"sentence scorer: format is {shape.format!r}, expected {FORMAT!r}")
    return shape


def metadata_of(shape: Shape) -> dict[str, str]:
    """The shape as safetensors metadata: one entry of sorted JSON, so that files are equal."""
    return {METADATA: json.dumps(shape.model_dump(), sort_keys=True)}
