"""`safe-decoding`: Xu et al. 2024, "SafeDecoding: Defending against Jailbreak Attacks via
Safety-Aware Decoding" (ACL 2024, arXiv:2402.08983).

The first tokens are drawn from p + alpha (p_expert - p), restricted to tokens in the top-k lists of
both the model and the expert. k is the smallest number that gives `common` such tokens. Later
tokens are drawn from the model alone. The defaults and the minimum probability are those of the
authors' code (uw-nsl/SafeDecoding). The authors' expert was tuned to refuse; here the expert is
that of `dexperts`, tuned on non-toxic text. The model's likeliest token is always included, so that
alpha 0 is the model; at the default alpha it is drawn only if the expert finds it likely, too.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.decoding import DecodingBaseline, MixedWriting, Reader, Writing
from tide.engines.local.stream import Stream

_FLOOR = 1e-8  # minimum probability


class SafeDecodingOptions(Options):
    strength = "alpha"

    alpha: Strength = Field(default=3.0, description="Weight of the expert.")
    first: int = Field(
        default=2, ge=1, le=10_000, description="Number of first tokens that are shifted."
    )
    common: int = Field(
        default=5, ge=1, le=10_000, description="Minimum number of tokens in both top-k lists."
    )
    order: Order = "shift-warp"


def in_common(scores: Tensor, expert: Tensor, least: int) -> Tensor:
    """Mask the tokens in both top-k lists, for the smallest k with `least` common tokens; (B, V).

    The likeliest token by `scores` is always included. A token is in both lists once k reaches the
    worse of its two ranks.
    """
    ranks = [
        logits.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        for logits in (scores, expert)
    ]
    worse = torch.maximum(*ranks)
    last = worse.sort(dim=-1).values[:, min(least, worse.shape[-1]) - 1, None]
    return (worse <= last) | (ranks[0] == 0)


def steered(scores: Tensor, expert: Tensor, alpha: float, least: int) -> Tensor:
    """Return log max(p + alpha (p_expert - p), 1e-8) where `in_common`, -inf elsewhere; (B, V)."""
    own, safe = scores.softmax(dim=-1), expert.softmax(dim=-1)
    moved = (own + alpha * (safe - own)).clamp(min=_FLOOR).log()
    return moved.masked_fill(~in_common(scores, expert, least), -torch.inf)


class _SafeWriting(MixedWriting):
    """Stops reading with the expert after the first tokens, which the expert steers."""

    def __init__(
        self, streams: list[Stream], reads: list[int], options: SafeDecodingOptions
    ) -> None:
        super().__init__(
            streams,
            reads,
            lambda scores, _, safe: steered(scores, safe, options.alpha, options.common),
        )
        self._first, self._left = options.first, options.first

    def reads(self, row: int, draws: int) -> int:
        return super().reads(row, draws) - max(draws - self._first, 0)

    def shift(self, scores: Tensor) -> Tensor:
        return super().shift(scores) if self._left else scores

    def advance(self, tokens: Tensor) -> None:
        self._left = max(self._left - 1, 0)
        if self._left:
            super().advance(tokens)
        else:
            self.stream.advance(tokens)


class SafeDecoding(DecodingBaseline):
    """Shifts the first tokens to an expert tuned on non-toxic text (`tide fit dexperts`)."""

    kind = "safe-decoding"
    options_class = SafeDecodingOptions
    reads = "dexperts"
    _options: SafeDecodingOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        readers = (Reader(self.engine.model), self.fitted_reader("expert"))
        streams = [reader.read(ids, tokens) for reader in readers]
        return _SafeWriting(streams, [2 * len(row) for row in ids], self._options)
