"""Our own training exchanges for the scorer `exchange`: a line, an answer, and whether it hurts.

Each kind has its opposite. A toxic line is agreed with, or contradicted; a question about a grave
matter is answered, or answered by an insult; a word that insults in one sentence is a name, a dish
or a command in another; and every sentence about people is made for all groups alike. A threat or
an insult without a rude word has a harmless sentence of the same form beside it, and so has what is
denied, contradicted or reported beside what is meant. The words are mild: the labelled texts have
the others. No line is taken from `probes.py`, `sentence_templates.py` or a benchmark.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# groups: adjective, singular, plural. slots: fillers of the patterns. patterns: a line and an
# answer, the number of exchanges that are made of them, and their label. harmless: questions and
# answers with their own fillers. sentences: single sentences, with their number and label. calm:
# neutral answers. openings, assents: how answers begin; assents agree or comply. asked: harmless
# questions with awkward words. awkward: harmless questions and answers that need grave words.
# told: the same, with names and facts for each line and answer. rejected, meant: frames of a toxic
# text that is reported, or said in earnest. topics, frames: of questions for models
# (`write_ordinary.py`).
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
    framed = [frame.format(topic) for topic in _DATA["topics"] for frame in _DATA["frames"]]
    asked = [pair["line"] for pair in _DATA["awkward"]]
    for told in _DATA["told"]:
        lines = itertools.cycle(told["lines"])
        asked += [line.format(name) for line, (name, _) in zip(lines, told["facts"], strict=False)]
    return [*random.Random(0).sample(framed, len(framed)), *asked]


def exchanges(seed: int = 0) -> Iterator[tuple[str, str, float]]:
    """Yield lines and answers, each with 1.0 if the answer is meant to hurt, else 0.0."""
    rng = random.Random(seed)
    for pattern in _DATA["patterns"]:
        for _ in range(pattern["count"]):
            group = rng.choice(GROUPS)
            line, answer = (_filled(pattern[part], group, rng) for part in ("line", "answer"))
            yield line, answer, pattern["label"]
    yield from _harmless(rng)


def _harmless(rng: random.Random) -> Iterator[tuple[str, str, float]]:
    for pattern in _DATA["harmless"]:
        for _ in range(_HARMLESS):
            words = {name: rng.choice(fillers) for name, fillers in pattern["slots"].items()}
            line, answer = pattern["line"].format(**words), pattern["answer"].format(**words)
            sentences = re.split(r"(?<=[.!;]) ", answer)
            if rng.random() < 0.4:
                sentences = sentences[: rng.randint(1, len(sentences))]
            yield (line if rng.random() < 0.8 else ""), " ".join(sentences), 0.0


def sentences(seed: int = 0) -> Iterator[tuple[str, float]]:
    """Yield sentences, each with 1.0 if it is meant to hurt, else 0.0."""
    rng = random.Random(seed)
    for pattern in _DATA["sentences"]:
        for _ in range(pattern["count"]):
            yield _filled(pattern["text"], rng.choice(GROUPS), rng), pattern["label"]


def calm(count: int, rng: random.Random) -> list[str]:
    """Return neutral answers, and beginnings of answers that neither agree nor comply."""
    patterns = _DATA["calm"] + _DATA["openings"]
    return [_filled(rng.choice(patterns), rng.choice(GROUPS), rng) for _ in range(count)]


def openings(count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Return harmless questions, most with awkward words, and how an answer to each may begin."""
    lines = [*_DATA["asked"], *dict.fromkeys(line for line, _ in awkward())]
    lines += rng.choices(questions(), k=len(lines))
    lines += [line for line, _, _ in _harmless(rng) if line][::8]
    begun = _DATA["openings"] + _DATA["assents"]
    return [
        (_filled(rng.choice(lines), rng.choice(GROUPS), rng),
         _filled(rng.choice(begun), rng.choice(GROUPS), rng))
        for _ in range(count)
    ]  # fmt: skip


def awkward() -> list[tuple[str, str]]:
    """Return harmless questions and answers that need grave words."""
    pairs = [(pair["line"], pair["answer"]) for pair in _DATA["awkward"]]
    for told in _DATA["told"]:
        answers = itertools.cycle(told["answers"])
        for name, fact in told["facts"]:
            # The answers are not as many as the lines, so each line gets other answers.
            for line, answer in zip(told["lines"], answers, strict=False):
                pairs.append((line.format(name), answer.format(name, fact, Name=_capital(name))))
    return pairs


def framed(text: str, rng: random.Random, *, rejected: bool) -> str:
    """Put a text into a frame that rejects it, or in which it is meant."""
    frame: str = rng.choice(_DATA["rejected" if rejected else "meant"])
    return frame.format(text)


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
    if slot[0].isupper():
        return _capital(_filler(slot[0].lower() + slot[1:], named, rng))
    filler: str = rng.choice(_DATA["slots"][slot.removeprefix("an ")])
    if not slot.startswith("an "):
        return filler
    return f"an {filler}" if filler[0] in "aeiou" else f"a {filler}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
