"""What the wrappers share that call a scorer in another way."""

from __future__ import annotations

import math

from tide.errors import InputError
from tide.scorers.base import Scorer


class Guard:
    """A scorer around another, whose name and threshold it has unless it says otherwise."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.name = scorer.name
        self.threshold = scorer.threshold

    def close(self) -> None:
        self._scorer.close()


def check_number(name: str, value: float, *, above: float, whole: bool = False) -> None:
    """Raise InputError unless the NUMBER of the wrapper `name` is finite and above `above`."""
    if not (math.isfinite(value) and value > above and (not whole or value == int(value))):
        kind = "whole number" if whole else "number"
        raise InputError(f"scorer {name}: expected a {kind} above {above:g} (got {value:g})")
