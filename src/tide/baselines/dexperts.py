"""`dexperts`: Liu et al. 2021, "DExperts: Decoding-Time Controlled Text Generation with Experts and
Anti-Experts" (ACL 2021, arXiv:2105.03023).

The logits are z = top-p(z_base) + alpha (z_expert - z_anti) (eq. 1). The expert is tuned on
non-toxic text, the anti-expert on toxic text.
"""

from __future__ import annotations

from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.decoding import DecodingBaseline, MakeLane
from tide.baselines.common.fit import FitTask, Fitted
from tide.baselines.common.lanes import MixedLane
from tide.baselines.common.training import write_like
from tide.engines.local.sampler import keep_nucleus


class DexpertsOptions(Options):
    strength = "alpha"

    alpha: Strength = Field(default=2.0, description="Weight of the experts' difference.")
    filter_p: float = Field(
        default=0.9, gt=0, le=1, description="Top-p of the model; all other tokens are dropped."
    )
    order: Order = "shift-warp"


def ensemble(
    scores: Tensor, base: Tensor, expert: Tensor, anti: Tensor, alpha: float, filter_p: float
) -> Tensor:
    """Return `scores` + alpha (expert - anti) in the nucleus of `base`, else -inf; all (B, V)."""
    outside = keep_nucleus(base, filter_p) == -torch.inf
    return (scores + alpha * (expert - anti)).masked_fill(outside, -torch.inf)


class Dexperts(DecodingBaseline):
    """Shifts the model's logits by the difference of an expert and an anti-expert."""

    kind = "dexperts"
    options_class = DexpertsOptions
    learned = True
    auxiliary = True
    _options: DexpertsOptions

    def lanes(self) -> MakeLane:
        options = self._options

        def combined(scores: Tensor, base: Tensor, expert: Tensor, anti: Tensor) -> Tensor:
            return ensemble(scores, base, expert, anti, options.alpha, options.filter_p)

        readers = [self.fitted_reader(side) for side in ("expert", "anti")]
        return partial(MixedLane, readers=readers, combined=combined)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the task's model: `expert` on non-toxic text, `anti` on toxic text.

        Figures: perplexity of held-out text of the same and of the other kind, before and after.
        """
        sides = {"expert": write_like(task, toxic=False), "anti": write_like(task, toxic=True)}
        tensors: dict[str, Tensor] = {}
        figures: dict[str, float] = {}
        for side, fitted in sides.items():
            tensors |= {f"{side}.{name}": tensor for name, tensor in fitted.tensors.items()}
            figures |= {f"{side} {name}": value for name, value in fitted.held_out.items()}
        return Fitted(tensors, figures)
