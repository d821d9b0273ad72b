"""Lanes of the engine's batch whose scores a baseline shifts, and models that read along.

    warp (temperature, top-k, top-p) -> candidates -> shift -> sample   (`order=warp-shift`)
    candidates -> shift -> warp -> sample                               (`order=shift-warp`)

In `shift-warp` the temperature also divides the shift: at temperature 0.1 the shift is ten times as
strong. A published strength is therefore valid only for one order, and each baseline has the order
of the code that it follows: sasa and rad warp first, as in versions of AISteer360, and have an
option `order`. All others, and rad with its authors' normalisation, shift first, as transformers
does with a custom logits processor. At temperature 0 the logits are not warped, and the token with
the largest shifted logit is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tide.baselines.artefacts import fit_width
from tide.core.errors import CompletionError, EngineError
from tide.engines.local.batch import Lane, Row
from tide.engines.local.stream import Forward, Stream

# Returns a context in which a model is called, for example with hooks on its layers.
Hooks = Callable[[], AbstractContextManager[object]]


@dataclass(eq=False)
class PromptRow(Row):
    """A row of a `SteeredLane`. text: the prompt.

    `read` is the number of tokens that any model has read for the row.
    """

    text: str = ""


@dataclass(eq=False)
class Reader:
    """A causal LM that reads the texts of rows.

    copies, prompts: `prompts(row)` returns `copies` token sequences, which the model reads instead
    of the row's prompt. front: embeddings (n, d) to read before each sequence. hooks: a context in
    which the model is called.
    """

    model: Any
    copies: int = 1
    prompts: Callable[[Any], Sequence[Sequence[int]]] = lambda row: [row.prompt_ids]
    front: Tensor | None = None
    hooks: Hooks = nullcontext

    def __post_init__(self) -> None:
        self.forward = Forward(self.model)

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Return the embeddings (T, d) of `front` and these tokens."""
        table = self.model.get_input_embeddings()
        x: Tensor = table(torch.tensor(ids, device=table.weight.device))
        return x if self.front is None else torch.cat([self.front.to(x.device, x.dtype), x])


class Companion:
    """A stream of what a `Reader` reads along with the rows of a lane.

    rows: the rows that are read along. The copies of a row are next to each other in the stream.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.clear()

    def clear(self) -> None:
        self.rows: list[Row] = []
        self.stream = Stream(self.reader.forward)

    def enter(self, rows: Sequence[Row]) -> None:
        """Read the beginnings of these rows. Raises CompletionError for one that is too long."""
        texts = [self.reader.embed(ids) for row in rows for ids in self.reader.prompts(row)]
        context, copies = self.reader.forward.context, self.reader.copies
        for number, x in enumerate(texts):
            length = rows[number // copies].request.sampling.max_new_tokens
            if context is not None and len(x) + length > context:
                needed = f"{len(x)} tokens (with the baseline's) + {length} new ones"
                raise CompletionError(f"{needed} exceed the context of {context}")
        with self.reader.hooks():
            self.stream.enter(texts)
        self.rows += rows
        for number, x in enumerate(texts):
            rows[number // copies].read += len(x)

    def advance(self, tokens: Tensor, rows: Sequence[Row]) -> None:
        """Read the next token of each row. tokens: (B,), the tokens of `rows`."""
        if not self.rows:
            return
        known = set(self.rows)
        numbers = [number for number, row in enumerate(rows) if row in known]
        copies = self.reader.copies
        with self.reader.hooks():
            self.stream.advance(tokens[numbers].repeat_interleave(copies))
        for row in self.rows:
            row.read += copies

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep those of these rows that are read along, in this order."""
        numbers = {row: number for number, row in enumerate(self.rows)}
        remaining = [row for row in rows if row in numbers]
        if remaining == self.rows:
            return
        copies = range(self.reader.copies)
        for row in set(self.rows) - set(remaining):
            if row.broken:
                for copy in copies:
                    self.stream.cache.wipe(numbers[row] * len(copies) + copy)
        self.stream.select(
            [numbers[row] * len(copies) + copy for row in remaining for copy in copies]
        )
        self.rows = remaining


class SteeredLane(Lane):
    """A lane with `shift`, which subclasses override, and with models that read along.

    baseline: the baseline that made the lane; None in a fit. shift_first: shift the logits before
    the warping instead of after it. hooks: a context in which the lane's model is called. readers:
    models that read along, as `companions`.
    """

    multiple = 1  # hooks and shifts see no dummy rows

    def __init__(
        self,
        forward: Forward,
        stop_ids: Tensor,
        *,
        baseline: Any = None,
        shift_first: bool = False,
        hooks: Hooks = nullcontext,
        readers: Sequence[Reader] = (),
    ) -> None:
        self.baseline = baseline
        self._shift_first, self.hooks = shift_first, hooks
        self.companions = [Companion(reader) for reader in readers]
        super().__init__(forward, stop_ids)
        if not all(reader.forward.plain for reader in readers):
            self.as_group = True

    def shift(self, scores: Tensor) -> Tensor:
        """Return `scores` (B, V) of `rows`, logits or warped logits, with the baseline's shift."""
        return scores

    def clear(self) -> None:
        super().clear()
        for companion in self.companions:
            companion.clear()

    def enter(self, rows: Sequence[Row]) -> None:
        for row in rows:
            row.read = len(row.x)
        try:
            for companion in self.companions:
                companion.enter(rows)
            with self.hooks():
                super().enter(rows)
        except BaseException:
            for companion in self.companions:
                companion.keep(self.rows)
            raise

    def draw(self) -> tuple[Tensor, Tensor]:
        scores = self.sampler.prepare(self.stream.logits)
        if not self._shift_first:
            scores = self.sampler.warp(scores)
        shifted = self.shift(scores)
        if shifted.shape != scores.shape:  # it would draw the tokens of other columns
            expected = tuple(scores.shape)
            raise EngineError(f"shift: returned shape {tuple(shifted.shape)}, not {expected}")
        if self._shift_first:
            shifted = self.sampler.warp(shifted)
        return self.sampler.draw(shifted)

    def advance(self, tokens: Tensor) -> None:
        for companion in self.companions:
            companion.advance(tokens, self.rows)
        self.advance_alone(tokens)

    def advance_alone(self, tokens: Tensor) -> None:
        """Read the next token of each row with the lane's own model."""
        with self.hooks():
            super().advance(tokens)
        for row in self.rows:
            row.read += 1

    def leave(self) -> list[int]:
        order = super().leave()
        for companion in self.companions:
            companion.keep(self.rows)
        return order


class MixedLane(SteeredLane):
    """Replaces the scores by `combined(scores, *logits)`; scores of -inf are kept.

    logits: the model's logits (B, V), then those of each companion (B * copies, V).
    """

    def __init__(self, *arguments: Any, combined: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._combined = combined

    def shift(self, scores: Tensor) -> Tensor:
        width = scores.shape[-1]
        logits = [
            fit_width(companion.stream.logits.float(), width) for companion in self.companions
        ]
        combined = self._combined(scores, self.stream.logits.float(), *logits)
        return combined.masked_fill(scores == -torch.inf, -torch.inf)


class CandidateLane(SteeredLane):
    """Draws one of the likeliest tokens (candidates), which a stream reads before the draw.

    This stream is that of the companion, or else the lane's own. It goes on with the drawn token.
    The baseline's option `candidates` is the maximum number of candidates; tokens dropped by top-p
    or top-k are not candidates. The baseline's method `gains` is called after the candidates were
    read, with their scores (B, K) and the stream's logits (B * K, V); returns the values that are
    added to the scores.
    """

    @property
    def _forked(self) -> Stream:
        return self.companions[0].stream if self.companions else self.stream

    def shift(self, scores: Tensor) -> Tensor:
        most = min(self.baseline.options.candidates, scores.shape[-1])
        left = (scores > -torch.inf).sum(dim=-1).clamp(1, most)
        values, self._ids = scores.topk(int(left.max()), dim=-1)
        for row, count in zip(self.rows, left.tolist(), strict=True):
            row.read += count
        numbers = torch.arange(len(self.rows)).repeat_interleave(self._ids.shape[1])
        self._forked.select(numbers.tolist())
        with self.hooks():
            self._forked.advance(self._ids.flatten())
        values = values + self.baseline.gains(values, self._forked.logits)
        return torch.full_like(scores, -torch.inf).scatter(-1, self._ids, values)

    def draw(self) -> tuple[Tensor, Tensor]:
        tokens, finite = super().draw()
        count = self._ids.shape[1]
        chosen = (self._ids == tokens[:, None]).int().argmax(dim=-1).tolist()
        # The copies of a broken row would leave their NaN in the cache.
        for number, good in enumerate(finite.tolist()):
            if not good:
                for copy in range(count):
                    self._forked.cache.wipe(number * count + copy)
        self._forked.select([number * count + copy for number, copy in enumerate(chosen)])
        return tokens, finite

    def advance(self, tokens: Tensor) -> None:
        if self.companions:  # otherwise the lane's own stream has read the drawn tokens
            self.advance_alone(tokens)
