"""Our own training sentences for the sentence scorer, so that it learns more than single words.

Each kind has its opposite: insults are also denied, quoted or objected to, and threats have offers
of help in the same frame. The words are mild; the trainer adds insults that it finds in the
labelled texts. No sentence or filler is taken from `sentence_development.py`, which compares
candidates, or from `probes.py`, which measures the result.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

# The fillers of each slot of a pattern; and patterns by kind, with the number of sentences that are
# made of them, and their label: 1 is meant to hurt.
_DATA = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
# Sentences without a slot are few, so each is repeated.
_REPEATED = 8
# Number of texts that join two sentences; such a text is labelled 1 if one of the sentences is.
_PAIRS = 1500

_SLOT = re.compile(r"\{(\w+)\}")
_PLURAL = {"you", "they", "we"}


def sentences(insults: Sequence[str] = (), seed: int = 0) -> list[tuple[str, float]]:
    """Make every sentence with its label: 1.0 if the sentence is meant to hurt, else 0.0.

    insults: further nouns for the patterns of insults and their opposites.
    """
    rng = random.Random(seed)
    slots = {
        **_DATA["slots"],
        "noun": [*_DATA["slots"]["noun"], *insults],
        "anyone": [*_DATA["outsiders"], *_DATA["slots"]["people"]],
    }
    rows = [
        (_filled(rng.choice(kind["patterns"]), slots, rng), kind["label"])
        for kind in _DATA["kinds"]
        for _ in range(kind["count"])
    ]
    rows += _REPEATED * [(text, 1.0) for text in (*_DATA["threats"], *_DATA["belittling"])]
    rows += _REPEATED * [(text, 0.0) for text in _DATA["harmless"]]
    harmless = [row for row in rows if not row[1]]
    pairs = [(rng.choice(rows), rng.choice(harmless)) for _ in range(_PAIRS)]
    return rows + [_joined(*rng.sample(pair, 2)) for pair in pairs]


def _joined(first: tuple[str, float], second: tuple[str, float]) -> tuple[str, float]:
    return f"{first[0]}{'.' if first[0][-1].isalnum() else ''} {second[0]}", max(
        first[1], second[1]
    )


def _filled(pattern: str, slots: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    """Fill a pattern at random; the verb agrees with the subject."""
    subject = rng.choice(slots["subj"])
    plural = subject in _PLURAL
    fixed = {
        "subj": subject,
        "is": "am" if subject == "I" else "are" if plural else "is",
        "isnt": "am not" if subject == "I" else rng.choice(
            ("aren't", "are not") if plural else ("isn't", "is not")),
    }  # fmt: skip
    while _SLOT.search(pattern):
        pattern = _SLOT.sub(lambda m: fixed.get(m[1]) or rng.choice(slots[m[1]]), pattern)
    words = [*pattern.split(" ")]
    for i in range(len(words) - 1):  # `a` before a vowel becomes `an`
        if words[i] in ("a", "A") and words[i + 1][:1].lower() in "aeio":
            words[i] += "n"
    text = " ".join(words)
    return text[:1].upper() + text[1:] if rng.random() < 0.8 else text
