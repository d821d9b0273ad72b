"""The script that trains the sentence scorer, run on a few mild texts with a tiny foundation."""

from __future__ import annotations

import gzip
import json
import re
import string
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from models.probes import LIMITS
from safetensors.torch import load_file, save_file

from models import probes
from tide.scorers.encoder import SentenceScorer

SCRIPTS = Path(__file__).parents[2] / "models"
WIDTH, INNER = 16, 32
WORDS = (
    "you", "are", "such", "a", "an", "idiot", "dummy", "quiet", "walk", "to", "house", "number",
    "the", "shop", "is", "open", "he", "said",
)  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    pytest.importorskip("onnx")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import encoder_training
    import train_sentence_scorer as script

    sentences = [("You dummy!", 1.0), ("You are not a dummy.", 0.0)]
    monkeypatch.setattr(script, "sentences", lambda insults, seed: sentences)
    monkeypatch.setattr(encoder_training, "foundation", lambda: tmp_path / "foundation")
    monkeypatch.setattr(script, "LAYERS", 1)
    monkeypatch.setattr(script, "PIECES", 90)
    monkeypatch.setattr(encoder_training, "WARM", 5)
    write_foundation(tmp_path / "foundation")
    threads = torch.get_num_threads()
    yield script
    torch.set_num_threads(threads)


def write_foundation(folder: Path) -> None:
    """A BERT of one layer with random weights."""
    folder.mkdir()
    signs = [*string.ascii_lowercase, *string.digits]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *signs, *(f"##{sign}" for sign in signs), *WORDS]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps(sizes))
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(dict.fromkeys(pieces)), WIDTH),
        "embeddings.position_embeddings.weight": (128, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    linear = {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
    for part in ("self.query", "self.key", "self.value", "output.dense"):
        linear[f"attention.{part}"] = (WIDTH, WIDTH)
    for name, shape in linear.items():
        shapes[f"encoder.layer.0.{name}.weight"] = shape
        shapes[f"encoder.layer.0.{name}.bias"] = shape[:1]
    for name in ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"):
        shapes |= {f"{name}.LayerNorm.weight": (WIDTH,), f"{name}.LayerNorm.bias": (WIDTH,)}
    torch.manual_seed(0)
    # As small as in a real network: larger weights saturate, and nothing can be learnt from them.
    weights = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    weights |= {name: torch.ones(WIDTH) for name in shapes if name.endswith("LayerNorm.weight")}
    save_file(weights, folder / "model.safetensors")


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(script: ModuleType, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    labelled = [
        {"text": f"{start} {i}, he said.", "toxicity": label, "source": "jigsaw"}
        for start, label in (("You are such an idiot number", 0.9), ("A walk to house", 0.1))
        for i in range(1500)
    ]
    write_lines(folder / "labelled/toxicity.jsonl.gz", labelled)
    pair = {"toxic": "You idiot, walk to the shop.", "neutral": []}
    write_lines(folder / "labelled/paradetox_pairs.jsonl.gz", [pair])
    plain = [{"text": f"The shop {i} {i} is open to you {i} and quiet."} for i in range(200)]
    write_lines(folder / "corpus/bold_wikipedia.jsonl.gz", plain)
    replies = [
        {"context": f"Is house {i} open?", "response": f"He said {i}.", "unsafe": i % 2,
         "source": "context_toxicity"} for i in range(40)
    ]  # fmt: skip
    write_lines(folder / "corpus/dialogues.jsonl.gz", replies)
    recorded = [
        {"completions": [f"You dummy {i}.", f"The walk {i % 7} is open."],
         "toxicity_scores": [0.8, 0.02]} for i in range(script.LAST_PROMPT + 3)
    ]  # fmt: skip
    completions = [{"prompt_id": 0, "completion": "Nothing of it."}]
    write_lines(folder / "corpus/base_completions.jsonl.gz", completions)
    path = folder / "paper/recorded/a-model/base.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(recorded).encode()))
    return folder


@pytest.mark.nightly
def test_trains_calibrates_and_writes(script: ModuleType, data: Path, tmp_path: Path) -> None:
    out, again, still, second, mean = (tmp_path / f"{n}.onnx" for n in range(5))
    passes = [file.with_suffix(".safetensors") for file in (out, second)]
    script.main(data, out, rate=1e-2)
    scorer = SentenceScorer(out)
    texts = ["You are such an idiot 901.", "A walk to house 901."]
    toxic, plain = scorer.score(texts)
    assert toxic > plain
    assert scorer.shape.scale > 0
    script.main(data, again, rate=1e-2)
    assert again.read_bytes() == out.read_bytes()
    # A further pass goes on from an earlier one; several have a mean.
    script.main(data, still, start=passes[:1], rate=0.0)
    assert still.read_bytes() == out.read_bytes()
    script.main(data, second, start=passes[:1], others=100, seed=1, rate=1e-2)
    script.main(data, mean, start=passes, rate=0.0)
    first, later, averaged = map(load_file, (*passes, mean.with_suffix(".safetensors")))
    assert (first["tokens.weight"] - later["tokens.weight"]).abs().max() > 0.005
    for name, weight in averaged.items():
        assert weight == pytest.approx((first[name] + later[name]) / 2, abs=1e-6), name


def test_reads_nothing_that_pocket_read(script: ModuleType, data: Path) -> None:
    import train_pocket_scorer as pocket

    labelled = pocket.read_labelled(data / "labelled")
    trained = {labelled.texts[i] for i in np.flatnonzero(labelled.parts(0) > 0)}
    prose = {
        text
        for part in ("train", "calibrate")
        for texts in pocket.read_ordinary(data, None, part).values()
        for text in texts
    }
    data_read = script.read(data)
    ordinary = {*data_read.ordinary, *data_read.prose}
    read = {*data_read.labelled.texts, *data_read.held.texts, *data_read.recorded.texts, *ordinary}
    assert data_read.labelled.texts
    assert data_read.held.texts
    assert not {*data_read.labelled.texts} & {*data_read.held.texts}
    assert not read & (trained | prose)
    assert not ordinary & {*pocket.read_ordinary(data, None, "report")["wikipedia"]}
    assert any(text.startswith("The shop") for text in ordinary)
    assert "Is house 2 open?" in ordinary
    recorded = script.recorded(data, script.Known(["You dummy 5."])).texts
    assert "You dummy 0." in recorded
    # Nothing that `pocket` read, nothing of later prompts.
    later = {f"The walk {(script.LAST_PROMPT + i) % 7} is open." for i in range(3)}
    assert not {"You dummy 5.", f"You dummy {script.LAST_PROMPT}.", *later} & {*recorded}


def test_known_texts_share_their_words_or_a_run_of_them(script: ModuleType) -> None:
    known = script.Known(["A quiet house.", "one two three four five six seven eight nine"])
    assert "a  quiet, HOUSE" in known
    assert "a quiet" not in known
    assert "and two three four five six seven eight nine" in known
    assert "one two three four five six seven" not in known


@pytest.mark.nightly
def test_what_measures_is_kept_out(script: ModuleType) -> None:
    """Neither its words are taught, nor five words of its sentences in a row."""
    import sentence_development as development
    import sentence_templates as templates

    texts = [text for seed in range(4) for text, _ in templates.sentences(seed=seed)]
    taught = {sentence for text in texts for sentence in re.split("(?<=[.;!?]) ", text)}
    assert len(taught) > 25_000
    measured = {*probes._NOUNS, *probes._ADJECTIVES, *probes._OTHERS, *probes._GROUPS} - {"women"}
    chosen_by = {*development.NOUNS, *development.ADJECTIVES, *development.GROUPS}
    assert not measured & chosen_by
    words = re.compile(rf"\b({'|'.join(map(re.escape, measured | chosen_by))})\b")
    assert not [text for text in taught if words.search(text.lower())]
    slots_of = templates._DATA["slots"]
    slots = [
        *templates._DATA["outsiders"],
        *slots_of["people"],
        *slots_of["noun"],
        *slots_of["adj"],
    ]
    longest_first = sorted({*measured, *chosen_by, *slots, "women"}, key=len, reverse=True)
    # By their first letters: one after another, 25,000 sentences take three seconds.
    letters = groupby(sorted(longest_first, key=itemgetter(0)), itemgetter(0))
    begun = [
        f"{letter}({'|'.join(re.escape(filler[1:]) for filler in fillers)})"
        for letter, fillers in letters
    ]
    filler = re.compile(rf"\b(?:an? )?({'|'.join(begun)})\b", re.IGNORECASE)

    def runs(sentences: Iterable[str], length: int = 5) -> set[tuple[str, ...]]:
        """Words in a row, with X for insults and groups; all words of a shorter sentence."""
        runs_of_words = set()
        for sentence in sentences:
            row = script.words_of(filler.sub("X", sentence))
            runs_of_words |= {
                tuple(row[i : i + length]) for i in range(max(len(row) - length, 0) + 1)
            }
        return runs_of_words

    trivial = {"plain insults", "leetspeak", "asterisks", "letters apart"}
    of_probes = runs(s for limit in LIMITS if limit.name not in trivial for s in limit.sentences)
    of_development = runs(s for limit in development.SETS for s in limit.sentences)
    assert not (of_probes | of_development) & runs(taught)
    assert not of_probes & of_development
    texts_found = 5 * ["You are a moron.", "You are a dork.", "You are a dolt.", "You are a nurse."]
    labelled = script.Rows(texts_found, 5 * [1.0, 1.0, 1.0, 0.0])
    assert script.found_insults(labelled) == ["dolt"]
