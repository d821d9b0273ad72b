"""`pocket-judge`: the bundled judge. A small convolutional network that reads words in their order.

It is of another kind than `pocket`, which counts words, and was trained on other texts, so that it
finds what a search against `pocket` has found a way around. A text that holds a term of a list of
profanities gets more. `scripts/train_pocket_judge.py` trains it on this module's network and reads
its file back through it. The weights are whole numbers from -127 to 127 with a scale for each row;
the list is stored as hashes, so that nobody has to read it; the file's metadata describes the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.functional import pad

from tide.core.errors import ScorerError, guarded
from tide.core.validation import problem
from tide.pocket import JUDGE, REFERENCE
from tide.scorers.base import Floats, PlainScorer
from tide.scorers.language import warn_of_other_languages
from tide.scorers.pocket import normalize
from tide.scorers.readings import score_readings

# Raise the number when `normalize`, `_WORD` or `_hash` changes: the hashes fit no other ones.
FORMAT = "tide-pocket-judge-2"
METADATA = "pocket_judge"
LISTED = "listed"  # the tensor with the hashes of the listed terms
# Of the parts of a text that are read at once, and the padding that they may need.
_BATCH = 64
_SCALE = ".scale"
_TOKENIZER = REFERENCE / "tokenizer.json"
_WORD = re.compile(r"[^\W_]+")
_LONGEST = 3  # words of a listed term
_MOST_LISTED = 100_000

_Size = Annotated[int, Field(ge=1, le=100_000)]
_Finite = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class Shape(BaseModel):
    """The network, and how its output becomes a probability.

    spans: of the first layer's filters, in tokens; `filters` of each. reach: span of those of the
    second layer. tokens: read at once; a longer text is read in parts that overlap by half, of
    which the worst counts. list_weight: added to the output for a text that holds a listed term.
    scale, offset: the logit is `scale * (output + list_weight) + offset`. tokenizer: digest of its
    file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: str = FORMAT
    vocabulary: _Size
    width: _Size
    filters: _Size
    spans: list[Annotated[int, Field(ge=1, le=64)]] = Field(min_length=1, max_length=16)
    reach: int = Field(ge=1, le=64)
    tokens: int = Field(ge=8, le=1024)
    list_weight: _Finite = 0.0
    scale: _Finite = 1.0
    offset: _Finite = 0.0
    tokenizer: str


class Network(nn.Module):
    """Two layers of filters over token vectors; what each finds at most, and a linear layer.

    After Kim (2014), "Convolutional neural networks for sentence classification", which has one.
    """

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        found = shape.filters * len(shape.spans)
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.near = nn.ModuleList(
            nn.Conv1d(shape.width, shape.filters, span) for span in shape.spans
        )
        self.far = nn.Conv1d(found, shape.filters, shape.reach)
        self.head = nn.Linear(found + shape.filters, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids, mask: (n, T); the mask is 1 for tokens and 0 for padding. Outputs: (n,)."""
        kept = mask[:, None]  # (n, 1, T), beside vectors of shape (n, width, T)
        vectors = self.dropout(self.tokens(ids)).transpose(1, 2) * kept
        near = torch.cat([_filtered(layer, vectors) for layer in self.near], dim=1) * kept
        far = _filtered(self.far, self.dropout(near)) * kept
        output: Tensor = self.head(self.dropout(torch.cat([near, far], dim=1).amax(-1)))
        return output[:, 0]


def _filtered(layer: nn.Module, vectors: Tensor) -> Tensor:
    """What the filters find that end at each token, (n, filters, T), at least 0."""
    assert isinstance(layer, nn.Conv1d)
    return torch.relu(layer(pad(vectors, (layer.kernel_size[0] - 1, 0))))


class TokenReader:
    """Texts to token ids, as the network reads them."""

    def __init__(self, tokens: int) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415  (slow import)

        self._tokenizer = Tokenizer.from_file(str(_TOKENIZER))
        self._tokens = tokens

    def parts(self, text: str) -> list[list[int]]:
        """The ids of a text, in parts of at most `tokens` that overlap by half."""
        ids: list[int] = self._tokenizer.encode(normalize(text), add_special_tokens=False).ids
        size = self._tokens
        if len(ids) <= size:
            return [ids or [0]]
        step = size // 2
        return [ids[start : start + size] for start in range(0, len(ids) - step, step)]


def term_hashes(text: str) -> set[int]:
    """Hashes of every one to three words in a row, in the spelling that the network reads."""
    words = _WORD.findall(normalize(text))
    return {
        _hash(words[start : start + length])
        for length in range(1, _LONGEST + 1)
        for start in range(len(words) - length + 1)
    }


def listed_hashes(terms: Iterable[str]) -> NDArray[np.uint64]:
    """A list of terms as it is stored: sorted hashes, without terms of more than three words."""
    found = [_WORD.findall(normalize(term)) for term in terms]
    hashes = {_hash(words) for words in found if 1 <= len(words) <= _LONGEST}
    return np.array(sorted(hashes), dtype=np.uint64)


def _hash(words: Sequence[str]) -> int:
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


@cache
def bundled_terms() -> frozenset[int]:
    """The hashes of the bundled list of profanities."""
    with (
        guarded(ScorerError, f"pocket judge: cannot use {JUDGE}"),
        safe_open(JUDGE, framework="numpy") as file,
    ):
        return _read_listed(file.get_tensor(LISTED))


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask of rows of unequal length, (n, T) each."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return ids, mask


def tokenizer_digest() -> str:
    return hashlib.sha256(_TOKENIZER.read_bytes()).hexdigest()[:16]


def packed(network: Network) -> dict[str, np.ndarray[Any, Any]]:
    """The weights as they are stored: tables in 8 bits with a scale a row, the rest in 16."""
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, weight in network.state_dict().items():
        values = weight.detach().double().numpy()
        if values.ndim < 2:
            tensors[name] = values.astype(np.float16)
            continue
        rows = tuple(range(1, values.ndim))
        scale = np.maximum(np.abs(values).max(axis=rows, keepdims=True), 1e-8) / 127
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


class PocketJudge(PlainScorer):
    """Probability that a reader finds an English text toxic, by a small network (for judging).

    weights: a file written by `scripts/train_pocket_judge.py`; the bundled one by default. Raises
    ScorerError if the file is missing, damaged, or belongs to another tokenizer.
    """

    languages = ("en",)

    def __init__(self, weights: str | Path | None = None) -> None:
        path = JUDGE if weights is None else Path(weights)
        with guarded(ScorerError, f"pocket judge: cannot use {path}"):
            revision = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
            with safe_open(path, framework="numpy") as file:
                self.shape = _read_shape(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self._listed = _read_listed(tensors.pop(LISTED, None))
            self.network = Network(self.shape)
            self.network.load_state_dict(_unpacked(tensors))
            self.network.eval().requires_grad_(False)
            self._reader = TokenReader(self.shape.tokens)
        self.name = f"pocket-judge@{revision}"

    def score(self, texts: Sequence[str]) -> Floats:
        """Probability of toxicity, shape (len(texts),), in [0, 1]; a text's score is its own."""
        if len(texts) == 0:
            return np.zeros(0)
        warn_of_other_languages("pocket-judge", texts)
        return score_readings(self._probabilities, texts)

    def _probabilities(self, texts: list[str]) -> Floats:
        rows = [(i, part) for i, text in enumerate(texts) for part in self._reader.parts(text)]
        outputs = self.outputs([part for _, part in rows])
        worst = np.full(len(texts), -np.inf)
        np.maximum.at(worst, [i for i, _ in rows], outputs)
        worst += self.shape.list_weight * self.holds_listed(texts)
        logits = self.shape.scale * worst + self.shape.offset
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0))), dtype=np.float64)

    def holds_listed(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each text holds a listed term, shape (len(texts),)."""
        return np.array([not self._listed.isdisjoint(term_hashes(text)) for text in texts])

    def outputs(self, rows: Sequence[Sequence[int]]) -> Floats:
        """What the network gives for each row of token ids, shape (len(rows),)."""
        return network_outputs(self.network, rows)


@torch.inference_mode()
def network_outputs(network: Network, rows: Sequence[Sequence[int]]) -> Floats:
    """The network's output for each row of token ids, shape (len(rows),)."""
    found = np.zeros(len(rows))
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # rows of a length share a batch
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        found[batch] = network(*padded([rows[i] for i in batch])).double().numpy()
    return found


def _read_shape(metadata: Mapping[str, str]) -> Shape:
    """The network of a weights file. Raises ScorerError if it is of another format."""
    if METADATA not in metadata:
        raise ScorerError(f"pocket judge: metadata lacks {METADATA!r}")
    try:
        shape = Shape.model_validate_json(metadata[METADATA])
    except ValidationError as error:
        raise ScorerError(f"pocket judge: bad metadata: {problem(error)}") from None
    if shape.format != FORMAT:
        raise ScorerError(f"pocket judge: format is {shape.format!r}, expected {FORMAT!r}")
    if shape.tokenizer != tokenizer_digest():
        raise ScorerError("pocket judge: these weights belong to another tokenizer")
    return shape


def _read_listed(stored: np.ndarray[Any, Any] | None) -> frozenset[int]:
    """The list of a weights file. Raises ScorerError if it is missing or not made of hashes."""
    if stored is None:
        raise ScorerError(f"pocket judge: the tensor {LISTED!r} is missing")
    if stored.dtype != np.uint64 or stored.ndim != 1 or len(stored) > _MOST_LISTED:
        raise ScorerError(
            f"pocket judge: the tensor {LISTED!r} is {stored.dtype} of shape {stored.shape},"
            f" expected at most {_MOST_LISTED:,} hashes of 64 bits"
        )
    return frozenset(stored.tolist())


def metadata_of(shape: Shape) -> dict[str, str]:
    """The shape as safetensors metadata: one entry of sorted JSON, so that files are equal."""
    return {METADATA: json.dumps(shape.model_dump(), sort_keys=True)}
