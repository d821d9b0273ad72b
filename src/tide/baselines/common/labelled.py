"""Labelled texts to fit baselines on: read, split, balanced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np

from tide.core.errors import InputError
from tide.data.labelled import LabelledText, Pair, read_entries

TOXIC, NON_TOXIC = 0.5, 0.1
_LEAST = 20  # least rows of a kind for a fit
_HELD_OUT = 0.1

T = TypeVar("T")

# The toxicity of a text -> whether it counts as toxic; None: neither.
Kind = Callable[[float], bool | None]


def by_half(toxicity: float) -> bool | None:
    """Toxic if at least half of the raters said so, and non-toxic if hardly any did."""
    return True if toxicity >= TOXIC else False if toxicity <= NON_TOXIC else None


def by_any(toxicity: float) -> bool | None:
    """Toxic if a single rater said so."""
    return toxicity > 0


@dataclass(frozen=True)
class Labelled:
    """Texts with a toxicity, and pairs of a toxic text and non-toxic ones."""

    singles: list[LabelledText]
    pairs: list[Pair]

    @property
    def texts(self) -> list[LabelledText]:
        """All texts, those of the pairs as well."""
        return [*self.singles, *(text for pair in self.pairs for text in pair.texts)]

    @property
    def digest(self) -> str:
        """16 hex digits of the contents."""
        contents = json.dumps(astuple(self)).encode()
        return blake2b(contents, digest_size=8).hexdigest()

    def split(self, seed: int) -> tuple[Labelled, Labelled]:
        """Nine tenths to fit on, one to measure on; a pair stays together.

        With few rows more than a tenth, at most a half, is measured on, since fewer than 40 say
        little.
        """
        generator = np.random.default_rng(seed)
        singles, pairs = _cut(self.singles, generator), _cut(self.pairs, generator)
        return Labelled(singles[0], pairs[0]), Labelled(singles[1], pairs[1])

    def balanced(
        self, seed: int, limit: int | None = None, kind: Kind = by_half, *, rest: bool = False
    ) -> list[LabelledText]:
        """Toxic and non-toxic texts, in random order, as many of either from each group.

        So no other property of a group predicts toxicity. limit: most texts. rest: and those that
        are neither.
        Raises InputError if there are fewer than 20 of either kind.
        """
        by_group: dict[str, tuple[list[LabelledText], list[LabelledText]]] = {}
        chosen: list[LabelledText] = []
        for text in self.texts:
            toxic = kind(text.toxicity)
            kinds = by_group.setdefault(text.group, ([], []))
            (chosen if toxic is None else kinds[toxic]).append(text)
        chosen = chosen if rest else []
        few = sum(min(map(len, kinds)) for kinds in by_group.values())
        if few < _LEAST:
            raise InputError(
                f"data: {few} toxic texts with as many non-toxic ones of their source;"
                f" at least {_LEAST} of either are needed"
            )
        generator = np.random.default_rng(seed)
        for kinds in by_group.values():
            size = min(map(len, kinds))
            for texts in kinds:
                chosen += [texts[i] for i in generator.permutation(len(texts))[:size]]
        return [chosen[i] for i in generator.permutation(len(chosen))[:limit]]

    def need_pairs(self, count: int) -> None:
        """Raise InputError unless there are `count` pairs."""
        if len(self.pairs) < count:
            raise InputError(
                f"data: {len(self.pairs)} pairs of 'toxic' and 'neutral' texts; "
                f"at least {count} are needed"
            )


def read_labelled(paths: Iterable[Path]) -> Labelled:
    """The labelled texts and pairs of `data.labelled.read_entries`, grouped by their `source`.

    Raises InputError, with the row's line, for a row that is neither, and for no rows at all.
    """
    entries = list(read_entries(paths, by="source"))
    if not entries:
        raise InputError("data: no labelled texts; give files with --data")
    pairs = [entry for entry in entries if isinstance(entry, Pair)]
    return Labelled([entry for entry in entries if isinstance(entry, LabelledText)], pairs)


def _cut(rows: Sequence[T], generator: np.random.Generator) -> tuple[list[T], list[T]]:
    order = generator.permutation(len(rows))
    held_out = max(round(len(rows) * _HELD_OUT), min(2 * _LEAST, len(rows) // 2))
    return [rows[i] for i in order[held_out:]], [rows[i] for i in order[:held_out]]
