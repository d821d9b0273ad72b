"""Mild texts and a tiny foundation, with which tests train `sentence` and `exchange`."""

from __future__ import annotations

import gzip
import json
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from models.train_pocket_scorer import LAST_PROMPT
from transformers import BertConfig, BertModel

SCRIPTS = Path(__file__).parents[2] / "models"
WORDS = (
    "you", "are", "such", "a", "an", "idiot", "dummy", "quiet", "walk", "to", "house", "number",
    "the", "shop", "is", "open", "he", "said",
)  # fmt: skip


@contextmanager
def training_script(name: str, folder: Path) -> Iterator[tuple[ModuleType, pytest.MonkeyPatch]]:
    """A script of `models/` that trains one layer; its foundation is written to `folder`."""
    pytest.importorskip("onnx")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        script = import_module(name)
        patch.setattr(import_module("encoder_training"), "foundation", lambda: folder)
        patch.setattr(script, "LAYERS", 1)
        write_foundation(folder)
        yield script, patch
    torch.set_num_threads(threads)


def write_foundation(folder: Path) -> None:
    """A BERT of one layer with random weights."""
    folder.mkdir()
    signs = [*string.ascii_lowercase, *string.digits]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *signs, *(f"##{sign}" for sign in signs), *WORDS]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    settings = BertConfig(
        vocab_size=len(dict.fromkeys(pieces)), hidden_size=16, intermediate_size=32,
        num_attention_heads=2, num_hidden_layers=1, max_position_embeddings=128,
        # As in a real network: larger weights saturate, and nothing can be learnt from them.
        initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(settings).save_pretrained(folder)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(lines.encode(), 1))


def write_data(folder: Path) -> Path:
    """The data of both scripts."""
    texts = [
        {"text": f"{start} {i}, he said.", "toxicity": label, "source": "jigsaw"}
        for start, label in (("You are such an idiot number", 0.9), ("A walk to house", 0.1))
        for i in range(400)
    ]
    write_rows(folder / "labelled/toxicity.jsonl.gz", texts)
    pair = {"toxic": "You idiot, walk to the shop.", "neutral": []}
    write_rows(folder / "labelled/paradetox_pairs.jsonl.gz", [pair])
    plain = [{"text": f"The shop {i} {i} is open to you {i} and quiet."} for i in range(200)]
    write_rows(folder / "corpus/bold_wikipedia.jsonl.gz", plain)
    replies = [
        {"context": f"Is house {i} open?", "response": f"He said {i}.", "unsafe": i % 2,
         "source": "context_toxicity"} for i in range(400)
    ]  # fmt: skip
    write_rows(folder / "corpus/dialogues.jsonl.gz", replies)
    completions = [
        {"prompt_id": i, "completion": f"{start} {i}."}
        for start in ("You dummy", "Idiot", "Calm") for i in range(LAST_PROMPT)
    ]  # fmt: skip
    write_rows(folder / "corpus/base_completions.jsonl.gz", completions)
    for method, starts, scores in (
        ("base", ("You dummy {}.", "The walk {last} is open."), (0.8, 0.02)),
        ("tide", ("Idiot {}.", "You dummy {}.", "Calm {}."), (0.9, 0.8, 0.1)),
    ):
        recorded = []
        for i in range(LAST_PROMPT + 3):
            written = [start.format(i, last=i % 7) for start in starts]
            row = {"prompt": f"A house {i}", "completions": written, "toxicity_scores": scores}
            recorded.append(row)
        path = folder / f"paper/recorded/a-model/{method}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(json.dumps(recorded).encode()))
    return folder
