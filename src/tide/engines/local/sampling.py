"""Choosing the next token: temperature, top-k, top-p, and Gumbel noise that belongs to a seed.

A token is drawn as the arg max of log-probability + Gumbel noise (the Gumbel-max trick, exact for
any distribution). The noise is a hash of (seed, step, token id): it needs no generator state, is
the same on every device and for every batch, and two sequences with one seed share it, which makes
their difference come from the model's probabilities alone (common random numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tide.core.settings import Sampling

# Elements of noise made at once: a megabyte, which stays in a core's cache through all the passes.
_CHUNK = 1 << 18

# The noise lies in (-2.9, 16.7), so a token whose logit is this far below the best cannot win.
_REACH = 19.6
# From so many logits on it pays to look for the tokens that can win, if they are a small share.
_MANY = 1 << 16
_SMALL_SHARE = 16


def noise_keys(seeds: Sequence[int], steps: int) -> Tensor:
    """Two 32-bit keys for each sequence and step, int32, shape (steps, 2, len(seeds), 1)."""
    keys = np.stack(
        [
            np.random.Philox(seed).random_raw(steps).view(np.int32).reshape(steps, 2)
            for seed in seeds
        ]
    )
    return torch.from_numpy(np.ascontiguousarray(keys.transpose(1, 2, 0)[..., None]))


def _mix(x: Tensor, shift: int, mask: int) -> Tensor:
    # int32 has no logical shift in torch: shift, then clear the bits that the sign filled.
    return x.bitwise_xor_((x >> shift).bitwise_and_(mask))


def gumbel_noise(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, shape (..., B, V), for `keys` of shape (..., 2, B, 1).

    tokens: int32 token ids, shape (V,), or (B, 1) for one of each row. The integer hash is the one
    known as lowbias32, with the second key mixed in between its two rounds.
    """
    x = tokens ^ keys[..., 0, :, :]
    _mix(x, 16, 0xFFFF).mul_(0x7FEB352D)
    _mix(x, 15, 0x1FFFF).bitwise_xor_(keys[..., 1, :, :]).mul_(-0x7B935975)  # 0x846CA68B as int32
    _mix(x, 16, 0xFFFF)
    # 23 bits and a half: strictly inside (0, 1) in float32, so both logarithms are finite.
    uniform = x.bitwise_and_(0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def keep_likely(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """`logits` (B, V) with -inf outside the top_k tokens and the top_p nucleus (in that order).

    The nucleus is the smallest set of most likely tokens whose mass reaches top_p; it always holds
    the most likely one.
    """
    if 0 < top_k < logits.shape[-1]:
        logits = _keep_top_k(logits, top_k)
    return _keep_nucleus(logits, top_p) if top_p < 1.0 else logits


def _keep_top_k(logits: Tensor, top_k: int | Tensor) -> Tensor:
    most = top_k if isinstance(top_k, int) else int(top_k.max())
    largest = logits.topk(min(most, logits.shape[-1]), dim=-1).values
    if isinstance(top_k, int):
        least = largest[:, -1:]
    else:
        least = largest.gather(-1, top_k.clamp(max=largest.shape[-1]) - 1)
    return logits.masked_fill(logits < least, -torch.inf)


def _keep_nucleus(logits: Tensor, top_p: float | Tensor) -> Tensor:
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order, before >= top_p)
    return logits.masked_fill(dropped, -torch.inf)


class Sampler:
    """Chooses one token a step for a batch of sequences, each with its own sampling and seed.

    `prepare` and `warp` make what `draw` draws from, so that a caller can change it in between.
    What a row gets does not depend on the others. Rows at temperature 0 are not warped, and their
    largest logit is taken.

    stop_ids: tokens that end a text, (S,). prompts: the ids of what each row goes on from, which a
    repetition penalty is about too; needed where there is one.
    """

    def __init__(
        self,
        samplings: Sequence[Sampling],
        seeds: Sequence[int],
        device: torch.device,
        stop_ids: Tensor | None = None,
        prompts: Sequence[Sequence[int]] = (),
    ) -> None:
        least = [row.min_new_tokens for row in samplings]
        self._least, self._longest_least = torch.tensor(least, device=device)[:, None], max(least)
        self._stop_ids = torch.empty(0, dtype=torch.int64) if stop_ids is None else stop_ids
        penalties = [row.repetition_penalty for row in samplings]
        self._penalty = _one_or_each(penalties, device) if set(penalties) != {1.0} else None
        # What each row may repeat: padded by the same, which changes nothing.
        ids = [list(prompt) or [0] for prompt in prompts] or [[] for _ in samplings]
        longest = max(map(len, ids))
        padded = [row + row[:1] * (longest - len(row)) for row in ids]
        self._seen = torch.tensor(padded, dtype=torch.int64, device=device)
        drawn = [i for i, row in enumerate(samplings) if row.temperature > 0]
        self._greedy = not drawn
        self._drawn = _numbers(drawn, len(samplings), device)
        self._temperature = _one_or_each([row.temperature or 1.0 for row in samplings], device)
        self._filters: list[tuple[Tensor | None, Callable[..., Tensor], Any]] = []
        for keep, values, off in (
            (_keep_top_k, [row.top_k for row in samplings], 0),
            (_keep_nucleus, [row.top_p for row in samplings], 1.0),
        ):
            rows = [i for i in drawn if values[i] != off]
            if rows:
                limit = _one_or_each([values[i] for i in rows], device)
                self._filters.append((_numbers(rows, len(samplings), device), keep, limit))
        self._tokens = torch.empty(0, dtype=torch.int32, device=device)
        self._shared: Tensor | None = None
        if drawn:
            seeds = [seeds[i] for i in drawn]
            if len(set(seeds)) < len(seeds):  # sequences that share a seed share a row of noise
                distinct, index = np.unique(np.asarray(seeds), return_inverse=True)
                seeds, self._shared = distinct.tolist(), torch.from_numpy(index).to(device)
            self._keys = noise_keys(seeds, max(row.max_new_tokens for row in samplings)).to(device)
        self._ahead = range(0)  # the steps whose noise is in self._chunk

    def prepare(self, logits: Tensor, step: int) -> Tensor:
        """The model's `logits` (B, V) for step number `step`, with penalty; float32.

        Those of the stop ids become -inf where a row is too short to end, in place: what else reads
        the logits of this step must not hope for these tokens either.
        """
        if step < self._longest_least:
            ids = self._stop_ids[self._stop_ids < logits.shape[-1]]
            logits[:, ids] = logits[:, ids].masked_fill(self._least > step, -torch.inf)
        scores = logits.float()
        if self._penalty is None:
            return scores
        ids = self._seen.clamp(max=scores.shape[-1] - 1)
        held = scores.gather(-1, ids)
        held = torch.where(held < 0, held * self._penalty, held / self._penalty)
        return scores.scatter(-1, ids, held)

    def warp(self, logits: Tensor) -> Tensor:
        """`logits` (B, V) by temperature, with -inf outside top-k and then top-p; float32."""
        if self._greedy:
            return logits.float()
        scores: Tensor = logits.float() / self._temperature
        for rows, keep, limit in self._filters:
            if rows is None:
                scores = keep(scores, limit)
            else:  # a row that keeps everything must not wait for the sorting of others
                scores[rows] = keep(scores[rows], limit)
        return scores

    def draw(self, scores: Tensor, step: int) -> Tensor:
        """Token ids (B,) from the warped scores (B, V) of step number `step`, from 0."""
        if self._drawn is None:
            tokens = self._draw(scores, step)
        else:
            tokens = scores.argmax(dim=-1)
            if not self._greedy:
                tokens[self._drawn] = self._draw(scores[self._drawn], step)
        if self._penalty is not None:
            self._seen = torch.cat([self._seen, tokens[:, None]], dim=1)
        return tokens

    def _draw(self, scores: Tensor, step: int) -> Tensor:
        if len(self._tokens) != scores.shape[-1]:
            self._tokens = torch.arange(
                scores.shape[-1], dtype=torch.int32, device=self._tokens.device
            )
            self._ahead = range(0)
        # On a GPU, to ask how many there are would wait for it; the noise costs it little.
        if scores.is_cpu and scores.numel() >= _MANY:
            near = scores >= scores.amax(dim=-1, keepdim=True) - _REACH
            rows, tokens = near.nonzero(as_tuple=True)
            if len(rows) * _SMALL_SHARE <= scores.numel():
                return self._draw_among(scores, rows, tokens, step)
        noise = self._noise(step)
        if self._shared is not None:
            noise = noise[self._shared]
        return (scores + noise).argmax(dim=-1)

    def _draw_among(self, scores: Tensor, rows: Tensor, tokens: Tensor, step: int) -> Tensor:
        """The arg max as `_draw` finds it, with noise for these tokens (and their rows) alone."""
        keys = self._keys[step][:, rows if self._shared is None else self._shared[rows]]
        values = scores[rows, tokens] + gumbel_noise(keys, tokens.int()[:, None])[:, 0]
        best = torch.full((len(scores),), -torch.inf).scatter_reduce_(0, rows, values, "amax")
        wins = values == best[rows]
        first = torch.full((len(scores),), scores.shape[-1])
        return first.scatter_reduce_(0, rows[wins], tokens[wins], "amin")

    def _noise(self, step: int) -> Tensor:
        """The noise of one step, made for several at once: for few rows, the calls cost most."""
        if step not in self._ahead:
            steps = max(1, _CHUNK // (self._keys.shape[2] * len(self._tokens)))
            self._chunk = gumbel_noise(self._keys[step : step + steps], self._tokens)
            self._ahead = range(step, step + len(self._chunk))
        return self._chunk[step - self._ahead.start]


def _numbers(rows: list[int], count: int, device: torch.device) -> Tensor | None:
    """`rows` as an index into a batch of `count`; None if it is all of them."""
    return None if len(rows) == count else torch.tensor(rows, dtype=torch.int64, device=device)


def _one_or_each(values: list[Any], device: torch.device) -> Any:
    """The value that all rows share, or else one of each, (B, 1)."""
    if len(set(values)) == 1:
        return values[0]
    return torch.tensor(values, device=device)[:, None]
