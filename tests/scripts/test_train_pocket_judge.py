"""The script that trains the bundled judge, run on a few mild texts."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tide import pocket
from tide.scorers.judge import LISTED, PocketJudge

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import train_pocket_judge

    monkeypatch.setattr(train_pocket_judge, "EPOCHS", 1)
    monkeypatch.setattr(train_pocket_judge, "neutral_rows", lambda: ["The shop is open."])
    monkeypatch.setattr(train_pocket_judge, "sentences", lambda: [("You dummy!", 1.0)])
    monkeypatch.setattr(train_pocket_judge, "disguised", lambda texts, labels, seed: ([], []))
    threads = torch.get_num_threads()
    yield train_pocket_judge
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_table(path: Path, columns: str, *rows: tuple[object, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns.split(), *rows])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two hundred texts with an insult and two hundred without; raters agree on most."""
    folder = tmp_path / "data"
    labelled = [
        {"text": f"{start} {i}, he said.", "toxicity": label, "source": "jigsaw"}
        for start, label in (("You idiot number", 0.9), ("A quiet walk to house", 0.1))
        for i in range(200)
    ]
    write_lines(folder / "labelled/toxicity.jsonl.gz", labelled)
    pair = {"toxic": "What a stupid rule.", "neutral": ["What a strange rule."]}
    write_lines(folder / "labelled/paradetox_pairs.jsonl.gz", [pair])
    write_lines(folder / "corpus/dialogues.jsonl.gz", [{"context": "Hello.", "response": "Hi!"}])
    write_lines(folder / "corpus/base_completions.jsonl.gz", [{"completion": "and so it went"}])
    recorded = folder / "paper/recorded/model/method.json.gz"
    recorded.parent.mkdir(parents=True)
    texts = ["and so it went", "what an idiot", "a nice day", "you fool"]
    with gzip.open(recorded, "wt", encoding="utf-8") as file:
        json.dump([{"completions": texts, "toxicity_scores": [0.1, 0.9, 0.1, 0.8]}], file)
    return folder


@pytest.fixture
def more(tmp_path: Path) -> Path:
    folder = tmp_path / "more"
    write_table(folder / "convabuse/1_full/ConvAbuseEMNLPfull.csv", "user is_abuse.1 is_abuse.0",
                ("Be quiet.", "1", "0"))  # fmt: skip
    write_table(folder / "toxicity/toxicity_en.csv", "text is_toxic", ("So dumb.", "Toxic"))
    write_table(folder / "profanity/profanity_en.csv", "text category_1 severity_description",
                ("idiot", "other / general insult", "Mild"),
                ("utter fool", "other / general insult", "Strong"))  # fmt: skip
    return folder


def test_trains_and_adds_the_list(script: ModuleType, data: Path, more: Path) -> None:
    out, held_out = more / "judge.safetensors", more / "held_out.jsonl.gz"
    script.main(more=more, data=data, out=out, held_out=held_out, network=None, seed=0, threads=1)
    judge = PocketJudge(out)
    assert judge.holds_listed(["An idiot!", "An utter fool.", "A fool."]).tolist() == [1, 1, 0]
    assert judge.shape.list_weight > 0  # all held-out insults, and nothing else, hold a listed word
    with gzip.open(held_out, "rt", encoding="utf-8") as file:
        assert {json.loads(line)["source"] for line in file} <= {"jigsaw", "paradetox"}


def test_takes_the_network_of_a_file(script: ModuleType, data: Path, more: Path) -> None:
    out = more / "judge.safetensors"
    script.main(
        more=more, data=data, out=out, held_out=None, network=pocket.JUDGE, seed=0, threads=1
    )
    made, bundled = load_file(out), load_file(pocket.JUDGE)
    assert len(made.pop(LISTED)) == 2
    assert len(bundled.pop(LISTED)) > 1000
    assert made.keys() == bundled.keys()
    assert all(np.array_equal(made[name], bundled[name]) for name in made)
