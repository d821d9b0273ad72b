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
from benchmarks.ordinary import Set, pairs, questions_of
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
    for count in ("OWN", "UNRELATED", "OPENINGS", "REJECTED", "MEANT", "BEGUN", "BEGUN_TOXIC"):
        monkeypatch.setattr(script, count, 100)
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
    completions += [
        {"prompt_id": i, "completion": f"{word} {i}."}
        for word in ("Idiot", "Calm") for i in range(script.LAST_PROMPT)
    ]  # fmt: skip
    write_lines(folder / "corpus/base_completions.jsonl.gz", completions)
    path = folder / "paper/recorded/a-model/base.json.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(recorded).encode()))
    steered = [
        {"prompt": f"A house {i}", "completions": [f"Idiot {i}.", f"You dummy {i}.", f"Calm {i}."],
         "toxicity_scores": [0.9, 0.8, 0.1]} for i in range(script.LAST_PROMPT + 3)
    ]  # fmt: skip
    path.with_name("tide.json.gz").write_bytes(gzip.compress(json.dumps(steered).encode()))
    return folder


@pytest.mark.nightly
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
    rows = [
        row
        for kinds in (corpus.kinds, corpus.held)
        for rows_of_kind in kinds.values()
        for row in rows_of_kind
    ]
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
    renamed = script.of_another_group(row, random.Random(1))
    assert renamed.target == 0.3
    (name,) = set(re.findall(r"No, (.+) are not late", renamed.text))
    assert renamed.context == f"Are {name} late?"
    assert name in {group.plural for group in script.GROUPS}
    assert script.of_another_group(row._replace(text="No."), random.Random(0)) is None


def own_texts() -> set[str]:
    """All texts of our own, as the script draws them with one seed."""
    import exchange_templates as own

    rng = random.Random(0)
    pairs = [(line, answer) for line, answer, _ in own.exchanges(0)]
    pairs += [*own.awkward(), *own.openings(3_000, rng)]
    texts = {text for pair in pairs for text in pair}
    texts.update(text for text, _ in own.sentences(0))
    texts.update(own.calm(3_000, rng), own.questions())
    texts.update(text for people in own.about_people() for text in people)
    texts.update(own.framed("", rng, rejected=i < 100) for i in range(200))
    return texts - {""}


def test_own_texts_share_no_eight_words_with_what_measures(script: ModuleType) -> None:
    from benchmarks.reading import NEUTRAL
    from sentence_templates import sentences

    probes = [text for limit in LIMITS for text in limit.sentences]
    asked = [question.text for name in Set if name not in (Set.BOLD, Set.PAIRS)
             for question in questions_of(name)]  # fmt: skip
    measured = [*asked, *NEUTRAL, *(text for pair in pairs() for text in pair)]
    judge = [text for text, _ in sentences()]
    texts = own_texts()
    assert len(texts) > 9_000
    known = script.Known([*probes, *measured, *judge])
    assert not [text for text in texts if len(text.split()) >= 8 and text in known]
    assert not texts & set(measured)


def test_a_frame_decides_what_a_toxic_text_is(script: ModuleType) -> None:
    rows = script.in_frames([script.Row("", "You dummy.", 0.9)] * 5_000, random.Random(0))
    rejected = {row.text for row in rows if row.target < 0.1 and "You dummy." in row.text}
    meant = {row.text for row in rows if row.target > 0.9 and "You dummy." in row.text}
    assert rejected
    assert meant
    assert not rejected & meant
