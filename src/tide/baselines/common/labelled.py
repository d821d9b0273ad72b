"""Labelled texts to fit baselines on: read, split, balanced."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tide.data.prompts import read_objects
from tide.errors import InputError

# A text is toxic if at least half of its raters said so, and non-toxic if hardly any did.
TOXIC, NON_TOXIC = 0.5, 0.1
_LEAST = 20  # rows of a kind without which nothing can be fitted or held out
_HELD_OUT = 0.1
_PAIRS = "pairs"  # the source of their texts

T = TypeVar("T")


@dataclass(frozen=True)
class LabelledText:
    """toxicity: share of raters in [0, 1]. source: where it is from."""

    text: str
    toxicity: float
    source: str


@dataclass(frozen=True)
class Pair:
    """A toxic text and neutral ones that say the same."""

    toxic: str
    neutral: tuple[str, ...]


@dataclass(frozen=True)
class Labelled:
    """Texts with a toxicity, and pairs, each of which is a toxic and some non-toxic texts too."""

    singles: list[LabelledText]
    pairs: list[Pair]

    @property
    def texts(self) -> list[LabelledText]:
        """All texts, those of the pairs as well."""
        expanded = list(self.singles)
        for pair in self.pairs:
            expanded.append(LabelledText(pair.toxic, 1.0, _PAIRS))
            expanded.extend(LabelledText(text, 0.0, _PAIRS) for text in pair.neutral)
        return expanded

    @property
    def digest(self) -> str:
        """16 hex digits of the contents."""
        contents = json.dumps(astuple(self)).encode()
        return blake2b(contents, digest_size=8).hexdigest()

    def split(self, seed: int) -> tuple[Labelled, Labelled]:
        """Nine tenths to fit on, one to measure on; a pair stays together."""
        generator = np.random.default_rng(seed)
        singles, pairs = _cut(self.singles, generator), _cut(self.pairs, generator)
        return Labelled(singles[0], pairs[0]), Labelled(singles[1], pairs[1])

    def balanced(self, seed: int, limit: int | None = None) -> list[LabelledText]:
        """Toxic and non-toxic texts, in random order, as many of either from each source.

        What a source is like otherwise then says nothing about toxicity. limit: most texts.
        Raises InputError if there are fewer than 20 of either kind.
        """
        by_source: dict[str, tuple[list[LabelledText], list[LabelledText]]] = {}
        for text in self.texts:
            toxic, other = by_source.setdefault(text.source, ([], []))
            if text.toxicity >= TOXIC:
                toxic.append(text)
            elif text.toxicity <= NON_TOXIC:
                other.append(text)
        generator = np.random.default_rng(seed)
        chosen: list[LabelledText] = []
        for kinds in by_source.values():
            size = min(map(len, kinds))
            for kind in kinds:
                chosen += [kind[i] for i in generator.permutation(len(kind))[:size]]
        if len(chosen) < 2 * _LEAST:
            raise InputError(
                f"data: {len(chosen) // 2} toxic texts with as many non-toxic ones of their source;"
                f" at least {_LEAST} of either are needed"
            )
        return [chosen[i] for i in generator.permutation(len(chosen))[:limit]]

    def need_pairs(self, count: int) -> None:
        """Raise InputError unless there are `count` pairs."""
        if len(self.pairs) < count:
            raise InputError(
                f"data: {len(self.pairs)} pairs of 'toxic' and 'neutral' texts; "
                f"at least {count} are needed"
            )


def read_labelled(paths: Iterable[Path]) -> Labelled:
    """Rows of .jsonl files (or .gz): `text, toxicity[, source]`, or `toxic, neutral`.

    toxicity: number in [0, 1]. neutral: a text or a list of them; without any, the row is just a
    toxic text. Raises InputError, with the
    line's number, for a row that is neither, and if there is nothing at all.
    """
    singles: list[LabelledText] = []
    pairs: list[Pair] = []
    for path in paths:
        for place, row in read_objects(path):
            if "toxic" not in row:
                singles.append(_single(row, place))
                continue
            pair = _pair(row, place)
            if pair.neutral:
                pairs.append(pair)
            else:
                singles.append(LabelledText(pair.toxic, 1.0, _PAIRS))
    if not singles and not pairs:
        raise InputError("data: no labelled texts; give files with --data")
    return Labelled(singles, pairs)


def _single(row: dict[str, Any], place: str) -> LabelledText:
    text, toxicity = row.get("text"), row.get("toxicity")
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{place}: no text field 'text' (nor 'toxic' and 'neutral')")
    if (
        isinstance(toxicity, bool)
        or not isinstance(toxicity, int | float)
        or not 0 <= toxicity <= 1
    ):
        raise InputError(f"{place}: 'toxicity' is {toxicity!r}; it must be a number in [0, 1]")
    return LabelledText(text, float(toxicity), str(row.get("source", "")))


def _pair(row: dict[str, Any], place: str) -> Pair:
    neutral = row.get("neutral")
    neutral = [neutral] if isinstance(neutral, str) else neutral
    if not isinstance(neutral, list):
        raise InputError(f"{place}: 'toxic' without a 'neutral' text or list of texts")
    if not all(isinstance(text, str) and text.strip() for text in (row["toxic"], *neutral)):
        raise InputError(f"{place}: 'toxic' or 'neutral' holds an empty text")
    return Pair(row["toxic"], tuple(neutral))


def _cut(rows: Sequence[T], generator: np.random.Generator) -> tuple[list[T], list[T]]:
    order = generator.permutation(len(rows))
    held_out = round(len(rows) * _HELD_OUT)
    return [rows[i] for i in order[held_out:]], [rows[i] for i in order[:held_out]]
