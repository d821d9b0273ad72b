"""`contrastive`: Li et al. 2023, "Contrastive Decoding" (ACL 2023, arXiv:2210.15097).

Prefers tokens that an expert model finds likelier than an amateur model does, among the tokens that
the expert finds plausible: log p_expert - coefficient log p_amateur. In the paper the amateur is a
smaller model, whose dull text is avoided. Here the expert is the model itself, and the amateur is
the copy that `dexperts` tuned on toxic text (read from its artefact), so toxic text is avoided.
`amateur=NAME` takes a smaller model as in the paper, without regard to toxicity.

As in the authors' code (XiangLi1999/ContrastiveDecoding), a token is plausible if it has at least a
tenth of the likeliest token's probability, and the amateur has a separate temperature. Their beam
search runs at temperature 1, where the order does not matter. When they sample at temperature T, T
divides only the expert's logits, so their coefficient c is `coefficient=c*T` here.
"""

from __future__ import annotations

import math
from functools import cached_property, partial

import torch
from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.artefacts import load_sibling, ready
from tide.baselines.common.decoding import DecodingBaseline, MakeLane
from tide.baselines.common.lanes import MixedLane, Reader


class ContrastiveOptions(Options):
    strength = "coefficient"

    coefficient: Strength = Field(default=1.0, description="Weight of the amateur.")
    plausible: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Minimum probability, as a share of the likeliest token's probability.",
    )
    amateur: str = Field(
        default="", max_length=4_096, description="A smaller model to use as the amateur."
    )
    order: Order = "shift-warp"


def contrast(scores: Tensor, amateur: Tensor, options: ContrastiveOptions) -> Tensor:
    """Subtract the weighted `amateur` logits from `scores`; implausible tokens get -inf; (B, V)."""
    lowest = scores.amax(dim=-1, keepdim=True) + math.log(options.plausible)
    contrasted = scores - options.coefficient * amateur
    return contrasted.masked_fill(scores < lowest, -torch.inf)


class Contrastive(DecodingBaseline):
    """Subtracts the logits of an amateur that was tuned on toxic text (`tide fit dexperts`)."""

    kind = "contrastive"
    options_class = ContrastiveOptions
    _options: ContrastiveOptions

    @classmethod
    def artefact_kind(cls, options: ContrastiveOptions) -> str:
        return "" if options.amateur else "dexperts"

    def lanes(self) -> MakeLane:
        return partial(
            MixedLane,
            readers=[self._amateur],
            combined=lambda scores, _, logits: contrast(scores, logits, self._options),
        )

    @cached_property
    def _amateur(self) -> Reader:
        if name := self._options.amateur:
            return self.reader(ready(load_sibling(self.engine, name)))
        return self.fitted_reader("anti")
