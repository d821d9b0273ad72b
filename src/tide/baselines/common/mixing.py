"""A second opinion on the same text: logits between those of the model and those of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tide.baselines.common.auxiliary import fit_width
from tide.baselines.common.decoding import Reader
from tide.engines.local.decode import Stream, Writing


class SecondWriting(Writing):
    """Draws from what `combined` makes of the scores and a second stream's logits, both (B, V).

    What cannot be drawn by the scores (-inf) stays so. second: a stream that reads the same text,
    perhaps behind another beginning; it goes on with the token that is drawn.
    """

    reads_per_token = 2

    def __init__(
        self,
        stream: Stream,
        second: Stream,
        reads: list[int],
        combined: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__(stream, reads)
        self._second, self._combined = second, combined

    def shift(self, scores: Tensor) -> Tensor:
        logits = fit_width(self._second.logits.float(), scores.shape[-1])
        shifted = self._combined(scores, logits)
        return shifted.masked_fill(scores == -torch.inf, -torch.inf)

    def advance(self, tokens: Tensor) -> None:
        super().advance(tokens)
        self._second.advance(tokens)


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
    return SecondWriting(stream, other, both, combined)
