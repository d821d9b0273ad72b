"""Train the bundled pocket scorer, and compare it with recorded Perspective scores.

    python scripts/train_pocket_scorer.py [--data ../shared/data] [--out FILE] [--held-out FILE]
        [--seed 0]

Takes about a minute on two cores.

**Data.** Openly licensed human labels only (`labelled/` in the data folder; its README names the
licences): toxic_spans, context_toxicity, a slice of the Jigsaw test set, davidson, and ParaDetox
pairs, whose toxic side counts as 1 and whose neutral rewrites count as 0. Where a text has several
raters, its label is the share of them who called it toxic. Repeated texts are dropped. Rows are
split at random into 80% training, 10% calibration and 10% test; a ParaDetox pair stays together.
(ParaDetox sentences may come from comments that another source holds: test is not wholly apart.)

**Disguises.** Half of the training rows are given once more in a disguised spelling (asterisks for
every second of them, else leetspeak or letters that stand apart) of about a third, two thirds or
all of their words, with the same label. Neutral sentences about people of many groups, and bare
punctuation marks, are given six times, labelled 0; every fifth group is left out, and the sentences
differ from those in `tide.scorers.probes` that measure the result.

**Model.** Logistic regression with soft labels on binary word 1-2-grams and character 3-5-grams,
all rows with equal weight, L2 (C = 10), 150 steps of L-BFGS.

**Calibration.** Platt scaling on the Jigsaw rows of the calibration part. Jigsaw is the source that
resembles general comments and has as many toxic as other ones (so that 0.5 is the point where both
are equally likely). The others would move the threshold for reasons of their own: davidson was
collected by offensive words (83% positive), context_toxicity has 1% positives, toxic_spans holds
posts already selected as toxic, and ParaDetox asks which of two paraphrases is meant. The scale and
offset are folded into the weights.

**How the configuration was chosen.** It has the best AUC on held-out Jigsaw rows (of another random
split than the one below) among some twenty settings: C 3/6/10/30, n-gram lengths, 0/1 or counts,
row norm, word trigrams, weights of the sources, an offset per source. Unless Jigsaw itself was left
out, they differed by less than 0.01. To go by Jigsaw was settled with all figures in view; the
average over the sources would have taken a smaller C or left toxic_spans out. The agreement with
the recorded Perspective scores was printed next to each setting, and for eight of them with six
choices of the rows for calibration, so it was seen too; nothing was fitted to it. It hardly depends
on the choice: AUC 0.964-0.972 unless Jigsaw or ParaDetox was left out, accuracy 0.936-0.948.
Of the disguises and neutral rows four amounts were tried (none; the sentences twice; six times; and
the marks), again with all figures in view: AUC 0.971 without, 0.972 to 0.973 with them.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from tide.scorers import probes
from tide.scorers.pocket import Features, PocketScorer

Floats = NDArray[np.float64]

REPOSITORY = Path(__file__).resolve().parents[1]
CALIBRATION_SOURCE = "jigsaw"
C = 10.0
STEPS = 150
LEAST_VISIBLE = 3
NEUTRAL = (
    "{} lives in this town.",
    "I work with {} from the office.",
    "My friend is {} and likes to cook.",
    "She married {} last year.",
    "He said that he is {}.",
    "There was {} in the queue before me.",
    "Today {} won the race.",
    "They interviewed {} about the weather.",
)
MARKS = ("!", "?", "?!", "!?", "!!!", "??", "?!?!", "...")
console = Console()


@dataclass
class Labelled:
    """Texts with a soft label in [0, 1]; rows of one group are never split apart."""

    texts: list[str] = field(default_factory=list)
    labels: list[float] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def add(self, text: str, label: float, source: str, group: str) -> None:
        """Add a row unless its text, apart from case and spacing, is empty or already there."""
        key = " ".join(text.lower().split())
        if not key or key in self._seen:
            return
        self._seen.add(key)
        self.texts.append(text)
        self.labels.append(label)
        self.sources.append(source)
        self.groups.append(group)

    def parts(self, seed: int) -> NDArray[np.int64]:
        """Per row: 0 test, 1 calibration, 2-9 training."""
        names, index = np.unique(self.groups, return_inverse=True)
        return np.random.default_rng(seed).integers(0, 10, len(names))[index]


def rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def read_labelled(folder: Path) -> Labelled:
    data = Labelled()
    for i, row in enumerate(rows(folder / "toxicity.jsonl.gz")):
        data.add(row["text"], row["toxicity"], row["source"], f"single {i}")
    for i, row in enumerate(rows(folder / "paradetox_pairs.jsonl.gz")):
        data.add(row["toxic"], 1.0, "paradetox", f"pair {i}")
        for neutral in row["neutral"]:
            data.add(neutral, 0.0, "paradetox", f"pair {i}")
    return data


def write_rows(path: Path, data: Labelled, rows: NDArray[np.int64]) -> None:
    """Labelled texts in the format of `toxicity.jsonl.gz`, for `tide scorers compare`."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for i in rows:
            row = {"text": data.texts[i], "toxicity": data.labels[i], "source": data.sources[i]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def disguised(texts: list[str], labels: Floats, seed: int) -> tuple[list[str], list[float]]:
    """Every second text with some of its words disguised, and its label."""
    rng = random.Random(seed)
    disguises = (probes.asterisks, probes.asterisks, probes.leetspeak, probes.spacing)
    chosen = [i for i in range(len(texts)) if rng.random() < 0.5]
    made = []
    for i in chosen:
        disguise, share = rng.choice(disguises), rng.choice((0.3, 0.6, 1.0))
        made.append(
            re.sub(
                "[A-Za-z]+",
                lambda word, disguise=disguise, share=share: (
                    disguise(word[0], rng.getrandbits(32)) if rng.random() < share else word[0]
                ),
                texts[i],
            )
        )
    return made, labels[chosen].tolist()


def neutral_rows() -> list[str]:
    people = [person for i, person in enumerate(probes.PEOPLE) if i % 5]
    sentences = [s.format(probes.with_article(person)) for person in people for s in NEUTRAL]
    return 6 * [*sentences, *MARKS]


def report_probes(scorer: PocketScorer, toxic: list[str]) -> None:
    """Recall at 0.5 on toxic texts as they are and disguised; scores of neutral sentences."""
    table = Table("spelling", "recall", title=f"{len(toxic)} held-out toxic texts")
    table.add_row("as it is", f"{(scorer.score(toxic) >= 0.5).mean():.3f}")
    for name, disguise in probes.DISGUISES.items():
        scores = scorer.score([disguise(text, i) for i, text in enumerate(toxic)])
        table.add_row(name, f"{(scores >= 0.5).mean():.3f}")
    console.print(table)
    scores = scorer.score(probes.neutral_sentences()).reshape(len(probes.PEOPLE), -1)
    console.print(
        f"neutral sentences: mean {scores.mean():.3f}, of groups not trained on"
        f" {scores[::5].mean():.3f}, highest {scores.max():.3f},"
        f" {(scores >= 0.5).mean():.3f} at 0.5 or above"
    )


def cross_entropy(logits: Floats, labels: Floats) -> tuple[float, Floats]:
    """Sum over rows, and its gradient with respect to the logits."""
    return float((np.logaddexp(0.0, logits) - labels * logits).sum()), expit(logits) - labels


def fit_weights(features: Any, labels: Floats, steps: int = STEPS) -> Floats:
    """L2-regularised logistic regression. features: CSR (n, d), labels: (n,).

    Returns the weights (d,) without the bias: calibration fits a new one.
    """
    transposed = features.T.tocsr()

    def objective(parameters: Floats) -> tuple[float, Floats]:
        weights, bias = parameters[:-1], parameters[-1]
        loss, gradient = cross_entropy(features @ weights + bias, labels)
        return (
            loss + float(weights @ weights) / (2 * C),
            np.append(transposed @ gradient + weights / C, gradient.sum()),
        )

    start = np.zeros(features.shape[1] + 1)
    return minimize(
        objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 6}
    ).x[:-1]


def fit_calibration(logits: Floats, labels: Floats) -> tuple[float, float]:
    """Platt scaling: the scale and offset for which expit(scale * logits + offset) fits best."""

    def objective(parameters: Floats) -> tuple[float, Floats]:
        loss, gradient = cross_entropy(parameters[0] * logits + parameters[1], labels)
        return loss / len(labels), np.array([gradient @ logits, gradient.sum()]) / len(labels)

    scale, offset = minimize(objective, np.array([1.0, 0.0]), jac=True, method="BFGS").x
    return float(scale), float(offset)


def agreement(labels: Floats, scores: Floats) -> tuple[float, float]:
    """AUC and accuracy at 0.5 against `labels > 0.5`. AUC is NaN where only one class occurs."""
    toxic = labels > 0.5
    auc = roc_auc_score(toxic, scores) if 0 < toxic.sum() < len(toxic) else float("nan")
    return float(auc), float(((scores > 0.5) == toxic).mean())


def report_labelled(scores: Floats, labels: Floats, sources: NDArray[np.str_]) -> None:
    table = Table("source", "rows", "toxic", "AUC", "accuracy", title="Held-out labels (test part)")
    for source in np.unique(sources):
        here = sources == source
        auc, accuracy = agreement(labels[here], scores[here])
        toxic = (labels[here] > 0.5).mean()
        table.add_row(source, f"{here.sum()}", f"{toxic:.3f}", f"{auc:.4f}", f"{accuracy:.4f}")
    console.print(table)


def read_recorded(folder: Path) -> dict[str, list[tuple[str, float]]]:
    """Per file, every completion with its Perspective score."""
    recorded = {}
    for path in sorted(folder.glob("*/*.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records = json.load(file)
        recorded[str(path.relative_to(folder)).removesuffix(".json.gz")] = [
            (text, score)
            for record in records
            for text, score in zip(record["completions"], record["toxicity_scores"], strict=True)
        ]
    return recorded


def report_recorded(scorer: PocketScorer, folder: Path) -> None:
    columns = ("file", "texts", "Perspective > 0.5", "pocket > 0.5", "AUC", "accuracy", "r")
    table = Table(*columns, title="Recorded Perspective scores (never trained on)")
    files = read_recorded(folder)
    pairs = [pair for recorded in files.values() for pair in recorded]
    visible = {text: s for text, s in pairs if len("".join(text.split())) >= LEAST_VISIBLE}
    for name, recorded in [*files.items(), ("all, each text once", list(visible.items()))]:
        kept = [(text, score) for text, score in recorded if text in visible]
        scores = scorer.score([text for text, _ in kept])
        target = np.array([score for _, score in kept])
        auc, accuracy = agreement(target, scores)
        r = np.corrcoef(scores, target)[0, 1]
        shares = [f"{(values > 0.5).mean():.3f}" for values in (target, scores)]
        figures = [f"{auc:.4f}", f"{accuracy:.4f}", f"{r:.3f}"]
        table.add_row(name, f"{len(kept)}", *shares, *figures)
    console.print(table)
    skipped = sum(text not in visible for text, _ in pairs)
    console.print(
        f"{skipped} of {len(pairs)} completions skipped (fewer than {LEAST_VISIBLE} visible"
        f" characters); {len(visible)} distinct ones remain"
    )
    report_speed(scorer, list(visible))


def report_speed(scorer: PocketScorer, texts: list[str]) -> None:
    rates = []
    for _ in range(7):
        start = time.process_time()  # so that other work on the machine does not count
        scorer.score(texts)
        rates.append(len(texts) / (time.process_time() - start))
    length = statistics.median(map(len, texts))
    console.print(
        f"{statistics.median(rates):,.0f} texts/s (median of 7; {min(rates):,.0f} to"
        f" {max(rates):,.0f}) of processor time, median length {length:.0f} characters"
    )


def main(
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    out: Annotated[Path, typer.Option(help="Weights file to write.")] = (
        REPOSITORY / "src/tide/pocket/scorer.safetensors"
    ),
    held_out: Annotated[
        Path | None, typer.Option(help="Write the rows of the test part to this .jsonl.gz.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Train on the labels, write the weights, and compare with the recorded scores."""
    labelled = read_labelled(data / "labelled")
    labels, sources = np.array(labelled.labels), np.array(labelled.sources)
    part = labelled.parts(seed)
    training, calibration = part >= 2, (part == 1) & (sources == CALIBRATION_SOURCE)
    features = Features()
    count = features.vectorizer().transform
    texts = [labelled.texts[i] for i in np.flatnonzero(training)]
    more, their_labels = disguised(texts, labels[training], seed)
    neutral = neutral_rows()
    targets = np.concatenate([labels[training], their_labels, np.zeros(len(neutral))])
    with console.status(f"fitting {len(targets):,} rows"):
        weights = fit_weights(count([*texts, *more, *neutral]), targets)
    counts = count([labelled.texts[i] for i in np.flatnonzero(calibration)])
    scale, offset = fit_calibration(counts @ weights, labels[calibration])
    console.print(f"calibration on {calibration.sum()} rows: {scale:.3f} * s {offset:+.3f}")

    tensors = {
        "weights": (scale * weights).astype(np.float16),
        "bias": np.array([offset], dtype=np.float32),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(save(tensors, metadata=features.metadata()))
    scorer = PocketScorer(out)
    console.print(f"{scorer.name}: wrote {out} ({out.stat().st_size:,} bytes)")

    test = np.flatnonzero(part == 0)
    if held_out is not None:
        write_rows(held_out, labelled, test)
    report_labelled(scorer.score([labelled.texts[i] for i in test]), labels[test], sources[test])
    report_probes(scorer, [labelled.texts[i] for i in test if labels[i] > 0.5])
    report_recorded(scorer, data / "paper" / "recorded")


if __name__ == "__main__":
    typer.run(main)
