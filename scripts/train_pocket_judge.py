"""Train the bundled judge, and compare it with the pocket scorer and recorded Perspective scores.

    python scripts/train_pocket_judge.py --more FOLDER [--data ../shared/data] [--out FILE]
        [--network FILE] [--held-out FILE] [--threads 1]

Takes about eight minutes of one core that multiplies in bfloat16. With `--network`, which takes the
trained network of a weights file, it takes two. FOLDER holds three repositories:

    git clone https://github.com/amandacurry/convabuse
    git clone https://github.com/surge-ai/toxicity
    git clone https://github.com/surge-ai/profanity

**Data.** No text that the pocket scorer was fitted to, but mostly from the same sources. That
scorer had all openly licensed sources of labels in the data folder, and the others that were tried
alone (SBIC, CAD, HateCheck, Vicomtech, ToxiChat, DiaSafety and the two above) gave a linear model
an AUC of 0.78 to 0.84, less than `profanity-check` has. `train_pocket_scorer.py` fits to 80 % of
the labelled texts. The judge has the others (its test part, and of its calibration part what it
does not use), of which a tenth is held out here. To them come two sources that the pocket scorer
never saw: ConvAbuse (CC-BY 4.0; what people said to chat bots) and Surge AI's comments (MIT); the
sentences of `judge_sentences.py`; and texts without labels: what base models wrote
(`corpus/base_completions`) and texts of `corpus/dialogues` that are in no labelled source.

**The list.** Surge AI's list of profanities (MIT) was no source of the pocket scorer. The output of
a text that holds a listed term is raised by one weight. People rated how severe each term is; their
ratings are not used. Weights by the worst term of a text, by the sum, and by both were tried, and
bars below which a term does not count. On the texts held out here none of them is better by more
than chance, and on the recorded scores, which were printed beside, each has a lower AUC where its
errors go together with the pocket scorer's as much. The list is stored as hashes.

**Stages.** 1. Two teachers learn from the labelled texts, half of them in disguised spelling once
more: n-grams with a linear model, and the network. 2. They label the texts that have no labels,
with the mean of their logits. 3. The judge learns from all of these. 4. Its weights are rounded to
8 bits. 5. The list's weight is the one with the lowest cross-entropy on the texts held out here.
6. Platt scaling on the Jigsaw rows that the pocket scorer is calibrated on. The bundled network is
older than the list: `--network src/tide/pocket/judge.safetensors` repeats the stages 5 and 6.

**Recorded Perspective scores** are used for nothing but the comparison, and were seen while the
recipe was chosen (the further sources were chosen by them, with a linear model, and so was the
list). A third of the
texts that have them were written by the base models, and so are among the texts without labels:
the agreement is reported without them, too.
"""

from __future__ import annotations

import csv
import random
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.table import Table
from safetensors import safe_open
from safetensors.numpy import save
from scipy.special import expit, logit

from judge_sentences import sentences
from tide.pocket import REFERENCE
from tide.scorers.agreement import error_correlations
from tide.scorers.judge import (
    LISTED,
    Network,
    PocketJudge,
    Shape,
    TokenReader,
    listed_hashes,
    metadata_of,
    network_outputs,
    packed,
    padded,
    tokenizer_digest,
)
from tide.scorers.limits import LIMITS
from tide.scorers.pocket import Features, PocketScorer
from train_pocket_scorer import (
    CALIBRATION_SOURCE,
    LEAST_VISIBLE,
    REPOSITORY,
    Labelled,
    agreement,
    console,
    cross_entropy,
    disguised,
    fit_calibration,
    fit_weights,
    neutral_rows,
    read_labelled,
    read_recorded,
    report_labelled,
    report_probes,
    report_speed,
    rows,
    write_rows,
)

Floats = NDArray[np.float64]

WIDEST = 0.5  # standard deviation of the token vectors at the start
FILTERS, SPANS, REACH = 128, [1, 3, 5], 5
TOKENS = 96
DROPOUT = 0.2
BATCH = 64
RATE = 1e-3
EPOCHS = 3
DIALOGUES = 6000
COUNTED, STEPS = 2**18, 50
# The linear teacher's logits are smaller, and both together are surer than they are right.
LINEAR, SURENESS = 2.0, 0.8
LIST_WEIGHTS = np.arange(0, 21) / 10
STAND_IN = "idiot"  # in the sentences of `tide.scorers.limits`, for which listed words are put
Rows = list[list[int]]


def split(labelled: Labelled, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Numbers of the rows to learn from, to hold out, and to calibrate on."""
    sources, part = np.array(labelled.sources), labelled.parts(seed)
    calibration = (part == 1) & (sources == CALIBRATION_SOURCE)
    ours = (part < 2) & ~calibration
    _, group = np.unique(labelled.groups, return_inverse=True)
    held_out = ours & (np.random.default_rng(seed + 1).random(group.max() + 1) < 0.1)[group]
    return (
        np.flatnonzero(ours & ~held_out),
        np.flatnonzero(held_out),
        np.flatnonzero(calibration),
    )


def further(folder: Path, labelled: Labelled) -> list[tuple[str, float]]:
    """Texts of the two other sources with their labels; none of them is a labelled text."""
    votes: dict[str, list[float]] = {}
    with (folder / "convabuse/1_full/ConvAbuseEMNLPfull.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            # 1 is not abusive, 0 ambivalent, and less is abusive.
            sure = 0.0 if row["is_abuse.1"] == "1" else 1.0
            votes.setdefault(row["user"], []).append(0.3 if row["is_abuse.0"] == "1" else sure)
    with (folder / "toxicity/toxicity_en.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            votes.setdefault(row["text"], []).append(float(row["is_toxic"] == "Toxic"))
    known = {_key(text) for text in labelled.texts}
    return [
        (text, sum(found) / len(found)) for text, found in votes.items() if _key(text) not in known
    ]


def read_list(folder: Path) -> list[dict[str, str]]:
    with (folder / "profanity/profanity_en.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _key(text: str) -> str:
    return " ".join(text.lower().split())


def without_labels(data: Path, labelled: Labelled) -> list[str]:
    """Texts to be labelled by the teachers; none of them is a labelled text."""
    known = {_key(text) for text in labelled.texts}
    replies = dict.fromkeys(
        text
        for row in rows(data / "corpus/dialogues.jsonl.gz")
        for text in (row["context"], row["response"])
        if _key(text) not in known
    )
    corpus = rows(data / "corpus/base_completions.jsonl.gz")
    written = dict.fromkeys(row["completion"] for row in corpus)
    chosen = random.Random(0).sample(list(replies), min(DIALOGUES, len(replies)))
    return [text for text in [*written, *chosen] if text.strip()]


def new_network(seed: int) -> tuple[Network, Shape]:
    """The network, with the token vectors of the reference model."""
    torch.manual_seed(seed)
    with safe_open(REFERENCE / "model.safetensors", framework="pt") as file:
        vectors = file.get_tensor("transformer.wte.weight").float()
    vocabulary, width = vectors.shape
    shape = Shape(
        vocabulary=vocabulary, width=width, filters=FILTERS, spans=SPANS, reach=REACH,
        tokens=TOKENS, tokenizer=tokenizer_digest(),
    )  # fmt: skip
    network = Network(shape, DROPOUT)
    with torch.no_grad():
        network.tokens.weight.copy_(vectors * WIDEST / vectors.std())
    return network, shape


def batches(ids: Rows, rng: random.Random) -> list[list[int]]:
    """All rows in a new order, in batches of rows of similar length."""
    order = rng.sample(range(len(ids)), len(ids))
    size = 32 * BATCH
    made = []
    for start in range(0, len(order), size):
        near = sorted(order[start : start + size], key=lambda i: len(ids[i]))
        made += [near[i : i + BATCH] for i in range(0, len(near), BATCH)]
    rng.shuffle(made)
    return made


def train(network: Network, ids: Rows, targets: Floats, seed: int) -> None:
    """Fit the network to soft labels; the rate rises over 150 steps and then falls to 0."""
    rng, wanted = random.Random(seed), torch.tensor(targets, dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.01)
    steps, step = EPOCHS * len(batches(ids, random.Random(0))), 0
    network.train()
    for epoch in range(EPOCHS):
        started, total = time.process_time(), 0.0
        for batch in batches(ids, rng):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, step / 150) * (1 - step / steps)
            with torch.autocast("cpu", torch.bfloat16):
                outputs = network(*padded([ids[i] for i in batch])).float()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, wanted[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            step, total = step + 1, total + loss.item() * len(batch)
        seconds = time.process_time() - started
        console.print(f"epoch {epoch + 1}: loss {total / len(ids):.4f}, {seconds:.0f} s of a core")
    network.eval()


def label(texts: list[str], targets: Floats, new: list[str], seed: int) -> Floats:
    """What the two teachers, who learn from `texts`, say of the new ones: probabilities."""
    started, count = time.process_time(), Features(n_features=COUNTED).vectorizer().transform
    linear = count(new) @ fit_weights(count(texts), targets, STEPS)
    console.print(f"the linear teacher: {time.process_time() - started:.0f} s of a core")
    network, shape = new_network(seed)
    reader = TokenReader(shape.tokens)
    ids = [reader.parts(text)[0] for text in texts]
    console.print(f"the network as teacher: {len(ids):,} rows")
    train(network, ids, targets, seed)
    deep = network_outputs(network, [reader.parts(text)[0] for text in new])
    console.print(f"spread of the teachers' logits: {linear.std():.2f}, {deep.std():.2f}")
    logits = SURENESS * (LINEAR * linear + deep) / 2
    return np.asarray(1 / (1 + np.exp(-logits)))


def trained(
    labelled: Labelled, learn: NDArray[np.int64], more: Path, data: Path, seed: int
) -> tuple[Network, Shape]:
    """The network, fitted to the rows `learn` and everything beside the labelled texts."""
    labels = np.array(labelled.labels)
    texts = [labelled.texts[i] for i in learn]
    spelled, their_labels = disguised(texts, labels[learn], seed)
    own = [*further(more, labelled), *sentences()]
    plain = [*neutral_rows()]
    texts = [*texts, *spelled, *plain, *(text for text, _ in own)]
    targets = np.array(
        [*labels[learn], *their_labels, *[0.0] * len(plain), *(value for _, value in own)]
    )
    new = without_labels(data, labelled)
    console.print(f"{len(learn):,} labelled texts, {len(texts):,} rows, {len(new):,} to label")
    guessed = label(texts, targets, new, seed)

    network, shape = new_network(seed + 1)
    reader = TokenReader(shape.tokens)
    ids = [reader.parts(text)[0] for text in [*texts, *new]]
    console.print(f"the judge: {len(ids):,} rows")
    train(network, ids, np.concatenate([targets, guessed]), seed + 1)
    return network, shape


def read_network(path: Path) -> tuple[Network, Shape]:
    """The network of a weights file, without its list's weight and its calibration."""
    judge = PocketJudge(path)
    plain = {"list_weight": 0.0, "scale": 1.0, "offset": 0.0}
    return judge.network, judge.shape.model_copy(update=plain)


def choose_weight(
    rough: PocketJudge, calibrate: tuple[list[str], Floats], hold: tuple[list[str], Floats]
) -> tuple[float, float, float]:
    """The list's weight, scale and offset with the lowest cross-entropy on the texts held out.

    rough: a judge without weight, scale and offset. calibrate: where scale and offset are fitted to
    each weight; hold: where the weights are compared. Both are texts and labels.
    """
    found = []
    for texts, _ in (calibrate, hold):
        scores = rough.score(texts)
        found.append((np.log(scores / (1 - scores)), rough.holds_listed(texts)))
    (fitted, their_list), (compared, its_list) = found
    tried = []
    for weight in LIST_WEIGHTS:
        scale, offset = fit_calibration(fitted + weight * their_list, calibrate[1])
        loss, _ = cross_entropy(scale * (compared + weight * its_list) + offset, hold[1])
        tried.append((loss / len(compared), float(weight), scale, offset))
    table = Table("list's weight", "cross-entropy", title="Texts held out")
    for loss, weight, *_ in tried:
        table.add_row(f"{weight:.1f}", f"{loss:.5f}")
    console.print(table)
    return min(tried)[1:]


def report_recorded(judge: PocketJudge, data: Path) -> None:
    """Agreement with the recorded scores beside the pocket scorer's, and of their errors."""
    found: dict[str, list[float]] = {}
    for pairs in read_recorded(data / "paper" / "recorded").values():
        for text, score in pairs:
            if len("".join(text.split())) >= LEAST_VISIBLE:
                found.setdefault(text, []).append(score)
    texts = list(found)
    target = np.array([np.mean(found[text]) for text in texts])
    seen = {row["completion"] for row in rows(data / "corpus/base_completions.jsonl.gz")}
    new = np.array([text not in seen for text in texts])
    scores = {scorer.name: scorer.score(texts) for scorer in (judge, PocketScorer())}
    table = Table("scorer", "texts", "AUC", "accuracy", "r", "error correlation",
                  title="Recorded Perspective scores (never trained on)")  # fmt: skip
    for title, here in (("all", np.ones(len(texts), bool)), ("not of the corpus", new)):
        errors = error_correlations({n: s[here] for n, s in scores.items()}, target[here])
        for name, values in scores.items():
            auc, accuracy = agreement(target[here], values[here])
            r = np.corrcoef(values[here], target[here])[0, 1]
            other = next(value for key, value in errors[name].items() if key != name)
            table.add_row(name, f"{here.sum()} {title}", f"{auc:.4f}", f"{accuracy:.4f}",
                          f"{r:.3f}", f"{other:.3f}")  # fmt: skip
    console.print(table)
    report_speed(judge, texts[:2000])


def report_limits(judge: PocketJudge) -> None:
    table = Table("set", "right", "mean", "pocket: right", "mean", title="Sentences of our own")
    for limit in LIMITS:
        cells = []
        for scorer in (judge, PocketScorer()):
            scores = scorer.score(limit.sentences)
            cells += [f"{((scores >= 0.5) == limit.toxic).mean():.3f}", f"{scores.mean():.2f}"]
        table.add_row(f"{limit.name} ({'high' if limit.toxic else 'low'})", *cells)
    console.print(table)


def report_listed(judge: PocketJudge, listed: list[dict[str, str]]) -> None:
    """What the list does to denials, quotations and the like of the words that it holds."""
    words = [
        row["text"]
        for row in listed
        if row["severity_description"] == "Mild"
        and row["category_1"] == "other / general insult"
        and row["text"].isalpha()
    ]
    table = Table("set", "right", "mean", "list's weight 0: right", "mean",
                  title=f"Sentences of our own, with {len(words)} mild listed words")  # fmt: skip
    for limit in LIMITS:
        with_words = [
            sentence.replace(STAND_IN, word)
            for sentence in limit.sentences
            for word in words
            if STAND_IN in sentence
        ]
        if not with_words:
            continue
        scores = judge.score(with_words)
        raised = judge.shape.scale * judge.shape.list_weight * judge.holds_listed(with_words)
        cells = []
        for values in (scores, expit(logit(scores) - raised)):
            cells += [f"{((values >= 0.5) == limit.toxic).mean():.3f}", f"{values.mean():.2f}"]
        table.add_row(f"{limit.name} ({'high' if limit.toxic else 'low'})", *cells)
    console.print(table)


def main(
    more: Annotated[Path, typer.Option(help="The folder of the three repositories.")],
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    out: Annotated[Path, typer.Option(help="Weights file to write.")] = (
        REPOSITORY / "src/tide/pocket/judge.safetensors"
    ),
    held_out: Annotated[
        Path | None, typer.Option(help="Write the labelled rows held out to this .jsonl.gz.")
    ] = None,
    network: Annotated[
        Path | None, typer.Option(help="Take the network of this weights file; train none.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split and the training.")] = 0,
    threads: Annotated[int, typer.Option(help="Of torch.")] = 1,
) -> None:
    """Train the judge on what the pocket scorer was not fitted to, and compare the two."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    labelled = read_labelled(data / "labelled")
    labels, sources = np.array(labelled.labels), np.array(labelled.sources)
    learn, hold, calibrate = split(labelled, seed)
    if network is None:
        made, shape = trained(labelled, learn, more, data, seed)
    else:
        made, shape = read_network(network)
    listed = read_list(more)
    tensors = packed(made) | {LISTED: listed_hashes(row["text"] for row in listed)}

    def write(final: Shape) -> PocketJudge:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(save(tensors, metadata=metadata_of(final)))
        return PocketJudge(out)

    weight, scale, offset = choose_weight(
        write(shape),
        ([labelled.texts[i] for i in calibrate], labels[calibrate]),
        ([labelled.texts[i] for i in hold], labels[hold]),
    )
    changes = {"list_weight": weight, "scale": scale, "offset": offset}
    judge = write(shape.model_copy(update=changes))
    console.print(
        f"{len(tensors[LISTED]):,} listed terms; calibration on {len(calibrate)} rows:"
        f" {scale:.3f} * (s + {weight:.1f} listed) {offset:+.3f}"
    )
    console.print(f"{judge.name}: wrote {out} ({out.stat().st_size:,} bytes)")

    if held_out is not None:
        write_rows(held_out, labelled, hold)
    here = [labelled.texts[i] for i in hold]
    for scorer in (judge, PocketScorer()):
        console.print(scorer.name)
        report_labelled(scorer.score(here), labels[hold], sources[hold])
    report_probes(judge, [labelled.texts[i] for i in hold if labels[i] > 0.5])
    report_limits(judge)
    report_listed(judge, listed)
    report_recorded(judge, data)


if __name__ == "__main__":
    typer.run(main)
