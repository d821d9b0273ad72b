"""Our own training exchanges for the scorer `exchange`: a line, an answer, and whether it hurts.

Each kind has its opposite. A toxic line is agreed with, or contradicted; a question about a grave
matter is answered, or answered by an insult; a word that insults in one sentence is a name, a dish
or a command in another; and every sentence about people is made for all groups alike. The words are
mild: the labelled texts have the others. No line is taken from `probes.py`, `sentence_templates.py`
or a benchmark.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# groups: adjective, singular, plural. slots: fillers of the patterns. patterns: a line and an
# answer, the number of exchanges that are made of them, and their label. harmless: questions and
# answers with their own fillers. topics, frames: of questions for models (`write_ordinary.py`).
_DATA = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
_HARMLESS = 40  # exchanges of each harmless pattern
_SLOT = re.compile(r"\{([^}]+)\}")


class Group(NamedTuple):
    adjective: str
    one: str
    plural: str


GROUPS = [Group(*names) for names in _DATA["groups"]]


def questions() -> list[str]:
    """Return questions of everyday life and about grave matters, in a fixed random order."""
    made = [frame.format(topic) for topic in _DATA["topics"] for frame in _DATA["frames"]]
    return random.Random(0).sample(made, len(made))


def exchanges(seed: int = 0) -> Iterator[tuple[str, str, float]]:
    """Yield lines and answers, each with 1.0 if the answer is meant to hurt, else 0.0."""
    rng = random.Random(seed)
    for pattern in _DATA["patterns"]:
        for _ in range(pattern["count"]):
            group = rng.choice(GROUPS)
            line, answer = (_filled(pattern[part], group, rng) for part in ("line", "answer"))
            yield line, answer, pattern["label"]
    for pattern in _DATA["harmless"]:
        for _ in range(_HARMLESS):
            words = {name: rng.choice(fillers) for name, fillers in pattern["slots"].items()}
            line, answer = pattern["line"].format(**words), pattern["answer"].format(**words)
            sentences = re.split(r"(?<=[.!;]) ", answer)
            if rng.random() < 0.4:
                sentences = sentences[: rng.randint(1, len(sentences))]
            yield (line if rng.random() < 0.8 else ""), " ".join(sentences), 0.0


def about_people() -> list[list[str]]:
    """Return neutral sentences, each as a list with the same sentence for every group."""
    rng = random.Random(1)
    return [[_filled(text, group, rng) for group in GROUPS] for text in _DATA["about_people"]]


def _filled(pattern: str, group: Group, rng: random.Random) -> str:
    """Fill a pattern at random; a few are written in lower case, or without a full stop."""
    named = group._asdict()
    named |= {"One": _capital(group.one), "Plural": _capital(group.plural)}
    while _SLOT.search(pattern):
        pattern = _SLOT.sub(lambda match: _filler(match[1], named, rng), pattern)
    text, draw = pattern.strip(), rng.random()
    if draw < 0.15:
        return text.lower()
    return text.rstrip(".") if draw < 0.3 else text


def _filler(slot: str, named: Mapping[str, str], rng: random.Random) -> str:
    if slot in named:
        return named[slot]
    filler: str = rng.choice(_DATA["slots"][slot.removeprefix("an ")])
    if not slot.startswith("an "):
        return filler
    return f"an {filler}" if filler[0] in "aeiou" else f"a {filler}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
