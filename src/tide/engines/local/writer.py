"""Rows that are written a chunk at a time, behind one key-value cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tide.core.settings import Sampling
from tide.engines.base import FinishReason, Written
from tide.engines.local.decode import Decoding, Stream, Writing


class LocalWriter:
    """See `engines.base.Writer`.

    stream: has read the prompts, and is nobody else's. prompts: their ids, as `Sampler` has them.
    read: is told how many tokens were read.
    """

    def __init__(
        self,
        stream: Stream,
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
        prompts: Sequence[Sequence[int]],
        stop_ids: torch.Tensor,
        read: Callable[[int], None],
    ) -> None:
        self._stream, self._read = stream, read
        self._decoding = Decoding(Writing(stream), samplings, seeds, stop_ids, prompts=prompts)
        self._rows = list(zip(samplings, seeds, prompts, strict=True))
        self._counts = [0] * len(self._rows)
        self._reasons: list[FinishReason | None] = [None] * len(self._rows)

    def advance(self, tokens: int) -> list[Written]:
        found: list[Written] = []
        for row, (ids, reason) in enumerate(self._decoding.advance(tokens)):
            before, self._counts[row] = self._counts[row], len(ids)
            if reason == "stop" or len(ids) == self._rows[row][0].max_new_tokens:
                self._reasons[row] = reason
            self._read(len(ids) - before)
            found.append((ids[before : len(ids) - (reason == "stop")], self._reasons[row]))
        return found

    @torch.inference_mode()
    def keep(self, rows: Sequence[int]) -> None:
        self._stream.keep(torch.tensor(rows, device=self._stream.logits.device))
        self._rows = [self._rows[row] for row in rows]
        self._counts = [self._counts[row] for row in rows]
        self._reasons = [self._reasons[row] for row in rows]
        samplings, seeds, prompts = map(list, zip(*self._rows, strict=True))
        self._decoding.keep(rows, samplings, seeds, prompts)
