"""Does a server write the same from token ids and from our embeddings of them?

It does not if it runs another model than the one our embeddings were read from, or if it scales
embeddings before its first block. The most likely first token after a few sentences tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

PROBES = (
    "The weather today is",
    "In the beginning there was",
    "My favourite food is",
    "Two plus two equals",
)

# Natural-log probabilities. Half precision and other kernels move one by a few hundredths; where
# they make another token the most likely one, the two were as likely before.
_TIE = 0.05
_CLOSE = 0.25

FirstToken = tuple[int, float]


def scaled_probes(embeddings: Sequence[Tensor]) -> list[Tensor]:
    """The embeddings of the probes as they are, and with the scalings that models use."""
    dim = embeddings[0].shape[-1]
    return [factor * x for factor in _factors(dim) for x in embeddings]


def difference(
    by_ids: Sequence[FirstToken], by_scaled: Sequence[FirstToken], dim: int
) -> str | None:
    """What is wrong, or None.

    by_ids: the most likely first token after each probe, and its log-probability. by_scaled: the
    same after each of `scaled_probes`.
    """
    agreeing = []
    for number, factor in enumerate(_factors(dim)):
        scaled = by_scaled[number * len(by_ids) : (number + 1) * len(by_ids)]
        if all(_agree(a, b) for a, b in zip(by_ids, scaled, strict=True)):
            agreeing.append(factor)
    if 1.0 in agreeing:
        return None
    if agreeing:
        return (
            f"expects embeddings multiplied by {agreeing[0]:.4g}: it and this version of "
            "transformers disagree on where they are scaled"
        )
    return "writes something else from embeddings than from token ids: does it run another model?"


def _factors(dim: int) -> tuple[float, ...]:
    return 1.0, math.sqrt(dim), 1.0 / math.sqrt(dim)


def _agree(a: FirstToken, b: FirstToken) -> bool:
    return abs(a[1] - b[1]) <= (_CLOSE if a[0] == b[0] else _TIE)
