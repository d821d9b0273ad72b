"""`reversal`: Leong et al. 2023, "Self-Detoxifying Language Models via Toxification Reversal".

EMNLP 2023, arXiv:2310.09573. At each step the model also reads the text after a negative prefix and
after a positive prefix. The output of every head at the last token is moved in the direction from
the output after the negative prefix to the output after the positive prefix. Rule, exponents and
prefixes are those of the authors' code (cooperleong00/ToxificationReversal, `innerdetox_hook.py`).
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.lanes import PromptRow, Reader, SteeredLane
from tide.baselines.layers import Heads, find_heads
from tide.engines.local.stream import Stream

NEGATIVE = "The following text is abusive, harmful, negative, obscene, racist, rude and toxic: "
POSITIVE = "The following text is kind, polite, positive, respectful and supportive: "
# Exponents of 1 + |delta|, and of 1 + similarity to the negative prefix.
_NORM_EXPONENT, _SIMILARITY_EXPONENT = 0.4, 0.6


class ReversalOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the published step.")


def reverse(values: Tensor, delta: Tensor, negative_end: Tensor, scale: float) -> Tensor:
    """Move head outputs away from the negative prefix, keeping their norm; all (B, heads, size).

    v - scale (1 + |delta|)^0.4 (1 + relu cos(v, v_neg_end))^0.6 delta replaces the output v of each
    head. Then the vector of all heads is scaled to its old norm.
    """
    by_norm = (1 + delta.norm(dim=-1, keepdim=True)) ** _NORM_EXPONENT
    likeness = cosine_similarity(values, negative_end, dim=-1).clamp(min=0)[..., None]
    moved = values - scale * by_norm * (1 + likeness) ** _SIMILARITY_EXPONENT * delta
    norm = moved.norm(dim=(-2, -1), keepdim=True)
    # A vector of zeros stays as it is.
    scaled: Tensor = moved * (values.norm(dim=(-2, -1), keepdim=True) / norm.clamp(min=1e-12))
    return scaled


class ReversalLane(SteeredLane):
    """Reads all entering rows in one pass, aligned with their deltas."""

    def clear(self) -> None:
        super().clear()
        self.stream = Stream(self.forward, together=True)


class Reversal(DecodingBaseline):
    """Moves each head's output at the last token against the effect of a negative prefix.

    The passes with a prefix run without this change and read the text written so far. Raises
    EngineError for an unknown layer layout.
    """

    kind = "reversal"
    options_class = ReversalOptions
    negative, positive = NEGATIVE, POSITIVE
    fan_out = 2
    _options: ReversalOptions

    def config(self) -> dict[str, Any]:
        return {**super().config(), "prefixes": [self.negative, self.positive]}

    def drawn_from(self) -> Reader:
        return self.reader(self.engine.model, hooks=partial(self._heads.hooked, self._move))

    def lanes(self) -> MakeLane:
        self.engine.portal.run(self._read_negative_end)
        prefixed = self.reader(
            self.engine.model,
            copies=2,
            prompts=self._prefixed,
            hooks=partial(self._heads.hooked, self._note),
            together=True,
        )
        return partial(ReversalLane, readers=[prefixed])

    def _prefixed(self, row: PromptRow) -> list[list[int]]:
        return self.engine.tokenize(
            [prefix + row.text for prefix in (self.positive, self.negative)]
        )

    def _note(self, layer: int, merged: Tensor) -> None:
        heads = self._heads.split(merged[:, -1].float())
        positive, negative = heads.view(-1, 2, *heads.shape[1:]).unbind(dim=1)
        self._delta[layer] = negative - positive

    def _move(self, layer: int, merged: Tensor) -> Tensor:
        values = self._heads.split(merged[:, -1].float())
        delta, negative_end = self._delta[layer], self._negative_end[layer]
        moved = reverse(values, delta, negative_end, self._options.scale)
        return torch.cat([merged[:, :-1], moved.flatten(-2)[:, None].to(merged.dtype)], dim=1)

    @cached_property
    def _heads(self) -> Heads:
        return find_heads(self.engine.model, self.engine.name)

    @cached_property
    def _delta(self) -> dict[int, Tensor]:
        """What the negative prefix adds in the latest pass, (B, heads, size), by layer."""
        return {}

    @cached_property
    def _negative_end(self) -> dict[int, Tensor]:
        """The heads' outputs at the end of the negative prefix, (heads, size), by layer."""
        return {}

    async def _read_negative_end(self) -> None:
        def note(layer: int, merged: Tensor) -> None:
            self._negative_end[layer] = self._heads.split(merged[0, -1].float())

        (ids,) = self.engine.tokenize([self.negative.strip()])
        reader = self.reader(self.engine.model)
        with torch.inference_mode(), self._heads.hooked(note):
            reader.forward.read([reader.embed(ids)])
