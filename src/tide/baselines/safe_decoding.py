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

from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.artefacts import fit_width
from tide.baselines.common.decoding import DecodingBaseline, MakeLane
from tide.baselines.common.lanes import SteeredLane

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


def in_common(scores: Tensor, expert: Tensor, minimum: int) -> Tensor:
    """Mask the tokens in both top-k lists, for the smallest k with `minimum` common tokens; (B, V).

    The likeliest token by `scores` is always included. A token is in both lists once k reaches the
    worse of its two ranks.
    """
    ranks = [
        logits.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        for logits in (scores, expert)
    ]
    worse = torch.maximum(*ranks)
    last = worse.sort(dim=-1).values[:, min(minimum, worse.shape[-1]) - 1, None]
    return (worse <= last) | (ranks[0] == 0)


def steered(scores: Tensor, expert: Tensor, alpha: float, minimum: int) -> Tensor:
    """Return log max(p + alpha (p_expert - p), 1e-8) where `in_common`, -inf elsewhere; (B, V)."""
    plain, safe = scores.softmax(dim=-1), expert.softmax(dim=-1)
    moved = (plain + alpha * (safe - plain)).clamp(min=_FLOOR).log()
    return moved.masked_fill(~in_common(scores, expert, minimum), -torch.inf)


class SafeLane(SteeredLane):
    """The expert reads a row only until it has steered the row's first tokens."""

    def __init__(self, *arguments: Any, options: SafeDecodingOptions, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._options = options

    def shift(self, scores: Tensor) -> Tensor:
        expert = self.companions[0]
        if not expert.rows:
            return scores
        early = set(expert.rows)
        numbers = [number for number, row in enumerate(self.rows) if row in early]
        early_scores = scores[numbers]
        safe = fit_width(expert.stream.logits.float(), scores.shape[-1])
        moved = steered(early_scores, safe, self._options.alpha, self._options.common)
        moved = moved.masked_fill(early_scores == -torch.inf, -torch.inf)
        return scores.index_copy(0, torch.tensor(numbers, device=scores.device), moved)

    def advance(self, tokens: Tensor) -> None:
        expert = self.companions[0]
        expert.keep([row for row in expert.rows if len(row.ids) < self._options.first])
        super().advance(tokens)


class SafeDecoding(DecodingBaseline):
    """Shifts the first tokens to an expert tuned on non-toxic text (`tide fit dexperts`)."""

    kind = "safe-decoding"
    options_class = SafeDecodingOptions
    reads = "dexperts"
    _options: SafeDecodingOptions

    def lanes(self) -> MakeLane:
        return partial(SafeLane, readers=[self.fitted_reader("expert")], options=self._options)
