"""The script that trains the scorer `exchange`, run on a few mild texts with a tiny foundation."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from models.probes import LIMITS

from tests.pocket.test_train_sentence_scorer import SCRIPTS, write_foundation, write_lines
from tide.scorers.base import Exchange
from tide.scorers.encoder import ExchangeScorer


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    pytest.importorskip("onnx")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import encoder_training
    import train_exchange_scorer as script

    monkeypatch.setattr(encoder_training, "foundation", lambda: tmp_path / "foundation")
    monkeypatch.setattr(script, "LAYERS", 1)
    monkeypatch.setattr(script, "OWN", 100)
    write_foundation(tmp_path / "foundation")
    threads = torch.get_num_threads()
    yield script
    torch.set_num_threads(threads)


@pytest.fixture
def data(script: ModuleType, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    labelled = [
        {"text": f"{start} {i}, he said.", "toxicity": label, "source": "jigsaw"}
        for start, label in (("You are such an idiot number", 0.9), ("A walk to house", 0.1))
        for i in range(400)
    ]
    write_lines(folder / "labelled/toxicity.jsonl.gz", labelled)
    write_lines(folder / "labelled/paradetox_pairs.jsonl.gz", [])
    plain = [{"text": f"The shop {i} {i} is open to you {i} and quiet."} for i in range(200)]
    write_lines(folder / "corpus/bold_wikipedia.jsonl.gz", plain)
    replies = [
        {"context": f"Is house {i} open?", "response": f"He said {i}.", "unsafe": i % 2,
         "source": "context_toxicity"} for i in range(400)
    ]  # fmt: skip
    write_lines(folder / "corpus/dialogues.jsonl.gz", replies)
    exchanges = [
        {"context": f"Dummy {i}", "response": f"You said {i}.", "unsafe": i % 2 == 0,
         "category": list(script.CATEGORIES)[i % 5]} for i in range(200)
    ]  # fmt: skip
    write_lines(folder / "exchanges/diasafety_train.jsonl.gz", exchanges)
    write_lines(folder / "exchanges/diasafety_val.jsonl.gz", exchanges[::9])
    recorded = [
        {"prompt": f"A house {i}", "completions": [f"You dummy {i}.", f"The walk {i % 7} is open."],
         "toxicity_scores": [0.8, 0.02]} for i in range(script.LAST_PROMPT + 3)
    ]  # fmt: skip
    completions = [
        {"prompt_id": i, "completion": f"You dummy {i}."} for i in range(script.LAST_PROMPT)
    ]
    write_lines(folder / "corpus/base_completions.jsonl.gz", completions)
    path = folder / "paper/recorded/a-model/base.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(recorded).encode()))
    return folder


def test_trains_calibrates_and_writes(script: ModuleType, data: Path, tmp_path: Path) -> None:
    written = tmp_path / "answers.jsonl"
    written.write_text(json.dumps({"prompt": "Is it open?", "text": "The shop is open."}) + "\n")
    out, still = tmp_path / "0.onnx", tmp_path / "1.onnx"
    script.main(data, out, written, rate=1e-2)
    scorer = ExchangeScorer(out)
    exchanges = [
        Exchange("", text) for text in ("You are such an idiot 901.", "A walk to house 901.")
    ]
    toxic, plain = scorer.score(exchanges)
    assert toxic > plain
    script.main(data, still, written, start=[out.with_suffix(".safetensors")], passes=0)
    assert still.read_bytes() == out.read_bytes()


def test_reads_nothing_that_judges_or_measures(script: ModuleType, data: Path) -> None:
    corpus = script.read(data, None)
    rows = [row for kinds in (corpus.kinds, corpus.held) for some in kinds.values() for row in some]
    texts = {text for row in rows for text in (row.context, row.text)}
    judge = script.read_sentence(data)
    assert judge.labelled.texts
    assert judge.recorded.texts
    assert not texts & {*judge.labelled.texts, *judge.held.texts, *judge.ordinary, *judge.prose}
    assert not {row.text for row in rows} & {*judge.recorded.texts}
    assert not texts & {f"Dummy {i}" for i in range(0, 200, 9)}
    assert {"Dummy 1", "You dummy 5."} <= texts
    # Nothing of later prompts.
    later = {f"The walk {(script.LAST_PROMPT + i) % 7} is open." for i in range(3)}
    assert not texts & {f"You dummy {script.LAST_PROMPT}.", *later}


def test_another_group_gets_the_same_label(script: ModuleType) -> None:
    row = script.Row("Are Germans late?", "No, Germans are not late.", 0.3)
    other = script.of_another_group(row, random.Random(1))
    assert other.target == 0.3
    (name,) = set(re.findall(r"No, (.+) are not late", other.text))
    assert other.context == f"Are {name} late?"
    assert name in {group.plural for group in script.GROUPS}
    assert script.of_another_group(row._replace(text="No."), random.Random(0)) is None


def test_own_exchanges_share_no_eight_words_with_what_measures(script: ModuleType) -> None:
    from sentence_templates import sentences

    known = script.Known(
        [*(text for limit in LIMITS for text in limit.sentences), *(t for t, _ in sentences())]
    )
    own = list(script.exchanges(0))
    assert len(own) > 9_000
    assert not [text for _, text, _ in own if len(text.split()) >= 8 and text in known]
    assert 0.3 < sum(label for _, _, label in own) / len(own) < 0.5
