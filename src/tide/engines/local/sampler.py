"""Choose the next token with temperature, top-k, top-p, and Gumbel noise from a seed.

A token is drawn as the arg max of log-probability + Gumbel noise (the Gumbel-max trick, exact for
any distribution). The noise is a hash of (seed, step, token id): it needs no generator state and is
the same on every device and in every batch. Two sequences with one seed share their noise, so that
they differ only by the model's probabilities (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from tide.engines.local.batch import Row

# Number of steps whose keys are made at once.
_KEYS = 32

# The noise lies in (-2.9, 16.7), so a token whose score is this far below the largest cannot win.
_REACH = 19.6
# With _MANY scores or more, noise is drawn only for the tokens that can win, unless more than one
# in _SMALL_SHARE tokens can win.
_MANY = 1 << 16
_SMALL_SHARE = 16


def noise_keys(seed: int) -> Iterator[list[int]]:
    """Yield two int32 keys for each token of a sequence."""
    source = np.random.Philox(seed)
    while True:
        yield from source.random_raw(_KEYS).view(np.int32).reshape(-1, 2).tolist()


def _mix(x: Tensor, shift: int, mask: int) -> Tensor:
    # torch has no logical shift for int32, so the mask clears the bits that the sign filled.
    return x.bitwise_xor_((x >> shift).bitwise_and_(mask))


def gumbel_noise(keys: Tensor, tokens: Tensor) -> Tensor:
    """Return standard Gumbel noise (float32) of shape (..., B, V) for `keys` (..., 2, B, 1).

    tokens: int32 token ids, shape (V,), or (B, 1) for one token per row. The integer hash is
    lowbias32, with the second key mixed in between its two rounds.
    """
    x = tokens ^ keys[..., 0, :, :]
    _mix(x, 16, 0xFFFF).mul_(0x7FEB352D)
    _mix(x, 15, 0x1FFFF).bitwise_xor_(keys[..., 1, :, :]).mul_(-0x7B935975)  # 0x846CA68B as int32
    _mix(x, 16, 0xFFFF)
    # 23 bits plus 0.5 scale to strictly inside (0, 1) in float32: both logarithms are finite.
    uniform = x.bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _keep_top_k(logits: Tensor, top_k: Tensor, *, largest_k: int) -> Tensor:
    largest = logits.topk(min(largest_k, logits.shape[-1]), dim=-1).values
    smallest = largest.gather(-1, top_k.clamp(max=largest.shape[-1]) - 1)
    return logits.masked_fill(logits < smallest, -torch.inf)


def keep_nucleus(logits: Tensor, top_p: float | Tensor) -> Tensor:
    """Return `logits` (B, V) with -inf outside the top_p nucleus.

    The nucleus is the smallest set of most likely tokens whose mass reaches top_p; it always holds
    the most likely token.
    """
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order, before >= top_p)
    return logits.masked_fill(dropped, -torch.inf)


class Sampler:
    """Chooses one token per step for each of its sequences, which enter and leave between steps.

    `prepare` and `warp` compute scores for `draw`; a caller may change the scores in between.
    The tokens of a sequence do not depend on the other sequences. A sequence at temperature 0 is
    not warped, and gets the token of the largest logit. stop_ids: tokens that end a text, (S,).
    """

    def __init__(self, stop_ids: Tensor) -> None:
        self._device, self._stop_ids = stop_ids.device, stop_ids
        self._rows: list[Row] = []
        self._seen: Tensor | None = None  # ids of each row under a repetition penalty
        self._tokens = torch.empty(0, dtype=torch.int32, device=self._device)
        self._waiting: list[int] = []  # rows that may still be too short to stop
        self._banned: tuple[Tensor, ...] | None = None
        self._penalty = torch.empty(0, 1)

    def enter(self, rows: Sequence[Row]) -> None:
        """Append sequences."""
        before = len(self._rows)
        self._rows += rows
        if any(row.request.sampling.repetition_penalty != 1 for row in self._rows):
            seen = [[0]] * before if self._seen is None else self._seen.tolist()
            seen += [list(row.prompt_ids) or [0] for row in rows]
            # Rows are padded by repeating an id, which has no effect.
            longest = max(map(len, seen))
            padded = [ids + ids[:1] * (longest - len(ids)) for ids in seen]
            self._seen = torch.tensor(padded, dtype=torch.int64, device=self._device)
        self._arrange()

    def keep(self, order: Sequence[int]) -> None:
        """Keep only the sequences with these numbers, in this order."""
        self._rows = [self._rows[row] for row in order]
        if self._seen is not None:
            self._seen = self._seen[list(order)]
        self._arrange()

    def prepare(self, logits: Tensor) -> Tensor:
        """Apply penalties to the model's `logits` (B, V) for the next tokens; returns float32.

        The logits of banned ids become -inf in place, and so do the logits of stop ids while a row
        is too short to end, because other readers of these logits must not count on these tokens.
        """
        if self._waiting:
            rows = self._rows
            self._waiting = [
                i
                for i in self._waiting
                if len(rows[i].ids) < rows[i].request.sampling.min_new_tokens
            ]
            ids = self._stop_ids[self._stop_ids < logits.shape[-1]]
            short = torch.tensor(self._waiting, dtype=torch.int64, device=self._device)
            logits[short[:, None], ids] = -torch.inf
        if self._banned is not None:
            logits[self._banned] = -torch.inf
        scores = logits.float()
        if self._seen is None:
            return scores
        ids = self._seen.clamp(max=scores.shape[-1] - 1)
        seen = scores.gather(-1, ids)
        seen = torch.where(seen < 0, seen * self._penalty, seen / self._penalty)
        return scores.scatter(-1, ids, seen)

    def warp(self, logits: Tensor) -> Tensor:
        """Apply temperature, then top-k, then top-p to `logits` (B, V); returns float32."""
        if not self._noisy:
            return logits.float()
        scores: Tensor = logits.float() / self._temperature
        for rows, keep, limit in self._filters:
            if rows is None:
                scores = keep(scores, limit)
            else:  # rows without top-k and top-p are not sorted
                scores[rows] = keep(scores[rows], limit)
        return scores

    def draw(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Draw token ids (B,) from warped scores (B, V); also returns whether rows were finite.

        Only the largest score of a row is checked, because NaN and infinity win any arg max.
        """
        best, drawn = scores.amax(dim=-1), self._drawn_rows
        finite = best.isfinite()
        if drawn is None:
            tokens = self._draw(scores, best)
        else:
            tokens = scores.argmax(dim=-1)
            if len(drawn):
                tokens[drawn] = self._draw(scores[drawn], best[drawn])
        if self._seen is not None:
            self._seen = torch.cat([self._seen, tokens[:, None]], dim=1)
        return tokens, finite

    def _arrange(self) -> None:
        """Rebuild the batch's tensors after rows enter or leave."""
        rows, device = self._rows, self._device
        samplings = [row.request.sampling for row in rows]
        self._waiting = [i for i, sampling in enumerate(samplings) if sampling.min_new_tokens]
        banned = [
            (i, token) for i, row in enumerate(rows) for token in row.request.banned_token_ids
        ]
        self._banned = tuple(torch.tensor(banned, device=device).T) if banned else None
        penalties = [sampling.repetition_penalty for sampling in samplings]
        self._penalty = torch.tensor(penalties, device=device)[:, None]
        if set(penalties) <= {1.0}:
            self._seen = None
        drawn = [i for i, sampling in enumerate(samplings) if sampling.temperature > 0]
        self._drawn_rows = _numbers(drawn, len(rows), device)
        self._noisy = [rows[i] for i in drawn]  # all other rows are greedy
        temperatures = [sampling.temperature or 1.0 for sampling in samplings]
        self._temperature = torch.tensor(temperatures, device=device)[:, None]
        self._filters: list[tuple[Tensor | None, Callable[..., Tensor], Any]] = []
        keep_top_k = partial(
            _keep_top_k, largest_k=max((sampling.top_k for sampling in samplings), default=0)
        )
        for keep, values, off in (
            (keep_top_k, [sampling.top_k for sampling in samplings], 0),
            (keep_nucleus, [sampling.top_p for sampling in samplings], 1.0),
        ):
            filtered = [i for i in drawn if values[i] != off]
            if filtered:
                limit = torch.tensor([values[i] for i in filtered], device=device)[:, None]
                self._filters.append((_numbers(filtered, len(rows), device), keep, limit))

    def _draw(self, scores: Tensor, best: Tensor) -> Tensor:
        """Return the arg max of scores (B, V) plus noise. best: the largest score of each row."""
        if len(self._tokens) != scores.shape[-1]:
            self._tokens = torch.arange(scores.shape[-1], dtype=torch.int32, device=scores.device)
        pairs = [next(row.keys) for row in self._noisy]
        keys = torch.tensor(pairs, dtype=torch.int32, device=scores.device).T[..., None]
        # On a GPU noise is cheap, but counting the tokens that can win would wait for the GPU.
        if scores.is_cpu and scores.numel() >= _MANY:
            rows, tokens = (scores >= best[:, None] - _REACH).nonzero(as_tuple=True)
            if len(rows) * _SMALL_SHARE <= scores.numel():
                return _draw_among(scores, keys, rows, tokens)
        return (scores + gumbel_noise(keys, self._tokens)).argmax(dim=-1)


def _draw_among(scores: Tensor, keys: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
    """Return the arg max of each row's scores plus noise, among the entries (`rows`, `tokens`)."""
    values = scores[rows, tokens] + gumbel_noise(keys[:, rows], tokens.int()[:, None])[:, 0]
    best = torch.full((len(scores),), -torch.inf).scatter_reduce_(0, rows, values, "amax")
    wins = values == best[rows]
    first = torch.full((len(scores),), scores.shape[-1])
    return first.scatter_reduce_(0, rows[wins], tokens[wins], "amin")


def _numbers(rows: list[int], count: int, device: torch.device) -> Tensor | None:
    """Return `rows` as an index into a batch of `count` rows; None for all rows."""
    return None if len(rows) == count else torch.tensor(rows, dtype=torch.int64, device=device)
