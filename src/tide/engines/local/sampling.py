"""Choosing the next token: temperature, top-k, top-p, and Gumbel noise that belongs to a seed.

A token is drawn as the arg max of log-probability + Gumbel noise (the Gumbel-max trick, exact for
any distribution). The noise is a hash of (seed, step, token id): it needs no generator state, is
the same on every device and for every batch, and two sequences with one seed share it, which makes
their difference come from the model's probabilities alone (common random numbers).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tide.config import Sampling

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
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        dropped = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, order, before >= top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    return logits


def warp(logits: Tensor, sampling: Sampling) -> Tensor:
    """`logits` (B, V) divided by the temperature, with -inf outside top-k and top-p; float32.

    At temperature 0, where the largest logit is taken, they stay as they are.
    """
    if sampling.temperature == 0:
        return logits.float()
    return keep_likely(logits.float() / sampling.temperature, sampling.top_k, sampling.top_p)


class Sampler:
    """Draws one token a step for a batch of sequences, each with its own seed."""

    def __init__(self, sampling: Sampling, seeds: Sequence[int], device: torch.device) -> None:
        self._sampling = sampling
        self._tokens = torch.empty(0, dtype=torch.int32, device=device)
        self._rows: Tensor | None = None
        if sampling.temperature > 0:
            if len(set(seeds)) < len(seeds):  # sequences that share a seed share a row of noise
                distinct, rows = np.unique(np.asarray(seeds), return_inverse=True)
                seeds, self._rows = distinct.tolist(), torch.from_numpy(rows).to(device)
            self._keys = noise_keys(seeds, sampling.max_new_tokens).to(device)
        self._ahead = range(0)  # the steps whose noise is in self._chunk

    def draw(self, logits: Tensor, step: int) -> Tensor:
        """Token ids, shape (B,), for the logits (B, V) of step number `step`, from 0."""
        if self._sampling.temperature == 0:
            return logits.argmax(dim=-1)
        if len(self._tokens) != logits.shape[-1]:
            self._tokens = torch.arange(
                logits.shape[-1], dtype=torch.int32, device=self._tokens.device
            )
            self._ahead = range(0)
        scaled = warp(logits, self._sampling)
        # On a GPU, to ask how many there are would wait for it; the noise costs it little.
        if scaled.is_cpu and scaled.numel() >= _MANY:
            near = scaled >= scaled.amax(dim=-1, keepdim=True) - _REACH
            rows, tokens = near.nonzero(as_tuple=True)
            if len(rows) * _SMALL_SHARE <= scaled.numel():
                return self._draw_among(scaled, rows, tokens, step)
        noise = self._noise(step)
        if self._rows is not None:
            noise = noise[self._rows]
        return (scaled + noise).argmax(dim=-1)

    def _draw_among(self, scaled: Tensor, rows: Tensor, tokens: Tensor, step: int) -> Tensor:
        """The arg max as `draw` finds it, with noise for these tokens (and their rows) alone."""
        keys = self._keys[step][:, rows if self._rows is None else self._rows[rows]]
        values = scaled[rows, tokens] + gumbel_noise(keys, tokens.int()[:, None])[:, 0]
        best = torch.full((len(scaled),), -torch.inf).scatter_reduce_(0, rows, values, "amax")
        wins = values == best[rows]
        first = torch.full((len(scaled),), scaled.shape[-1])
        return first.scatter_reduce_(0, rows[wins], tokens[wins], "amin")

    def _noise(self, step: int) -> Tensor:
        """The noise of one step, made for several at once: for few rows, the calls cost most."""
        if step not in self._ahead:
            steps = max(1, _CHUNK // (self._keys.shape[2] * len(self._tokens)))
            self._chunk = gumbel_noise(self._keys[step : step + steps], self._tokens)
            self._ahead = range(step, step + len(self._chunk))
        return self._chunk[step - self._ahead.start]
