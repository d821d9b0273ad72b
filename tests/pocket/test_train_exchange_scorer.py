"""The texts that the script for the scorer `exchange` reads, of a few mild ones."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.ordinary import Set, pairs, questions_of
from benchmarks.reading import NEUTRAL
from models.probes import LIMITS
from models.sentence_templates import sentences

from models import exchange_templates as own
from tests.pocket.training import write_data
from tests.rows import write_rows
from tests.scripts.loading import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("models/train_exchange_scorer.py")


def test_reads_nothing_that_judges_or_measures(script: ModuleType, tmp_path: Path) -> None:
    data = write_data(tmp_path)
    exchanges = [
        {"context": f"Dummy {i}", "response": f"You said {i}.", "unsafe": i % 2 == 0,
         "category": list(script.CATEGORIES)[i % 5]} for i in range(200)
    ]  # fmt: skip
    write_rows(data / "exchanges/diasafety_train.jsonl.gz", exchanges)
    write_rows(data / "exchanges/diasafety_val.jsonl.gz", exchanges[::9])
    corpus = script.read(data, None)
    rows = list(chain(*corpus.kinds.values(), *corpus.held.values()))
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


def own_texts() -> set[str]:
    """All texts of our own, as the script draws them with one seed."""
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
