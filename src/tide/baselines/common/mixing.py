"""Mixtures of the model's logits and those of other models on the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tide.baselines.common.auxiliary import fit_width
from tide.baselines.common.decoding import Reader, Writing
from tide.engines.local.stream import Stream


class MixedWriting(Writing):
    """Draws from `combined` of the scores and the others' logits, all (B, V).

    What cannot be drawn by the scores (-inf) stays so. streams: the model's, and others that read
    the same text, perhaps after another beginning; they go on with the token that is drawn.
    """

    def __init__(
        self, streams: Sequence[Stream], reads: list[int], combined: Callable[..., Tensor]
    ) -> None:
        super().__init__(streams[0], reads)
        self._others, self._combined = streams[1:], combined
        self.reads_per_token = len(streams)

    def shift(self, scores: Tensor) -> Tensor:
        logits = (fit_width(other.logits.float(), scores.shape[-1]) for other in self._others)
        return self._combined(scores, *logits).masked_fill(scores == -torch.inf, -torch.inf)

    def advance(self, tokens: Tensor) -> None:
        super().advance(tokens)
        for other in self._others:
            other.advance(tokens)


def toward(scores: Tensor, base: Tensor, other: Tensor, scale: float) -> Tensor:
    """`scores` moved by `scale` times the step from the logits `base` to `other`; all (B, V)."""
    return scores + scale * (other - base)


def between(
    model: Reader,
    ids: Sequence[Sequence[int]],
    tokens: int,
    other: Stream,
    reads: list[int],
    scale: float,
) -> Writing:
    """Draws by the model at `scale` 0, by `other` at 1, between and beyond them at any else.

    ids, tokens: as `Reader.read` has them; at 1 the model reads nothing. reads: tokens of each
    prompt that `other` has read.
    """
    if scale == 1:
        return Writing(other, reads)
    stream = model.read(ids, tokens)

    def combined(scores: Tensor, logits: Tensor) -> Tensor:
        return toward(scores, stream.logits.float(), logits, scale)

    both = [len(row) + read for row, read in zip(ids, reads, strict=True)]
    return MixedWriting([stream, other], both, combined)
