"""`reversal`: Leong et al. 2023, "Self-Detoxifying Language Models via Toxification Reversal".

EMNLP 2023, arXiv:2310.09573. At each step the model also reads the text after a negative prefix and
after a positive prefix. The output of every head at the last token is moved in the direction from
the output after the negative prefix to the output after the positive prefix. Rule, exponents and
prefixes are those of the authors' code (cooperleong00/ToxificationReversal, `innerdetox_hook.py`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tide.baselines.base import Options, Strength
from tide.baselines.common.decoding import DecodingBaseline, Reader, Writing
from tide.baselines.common.layers import Heads, find_heads

NEGATIVE = "The following text is abusive, harmful, negative, obscene, racist, rude and toxic: "
POSITIVE = "The following text is kind, polite, positive, respectful and supportive: "


class ReversalOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the published step.")
    norm_exponent: float = Field(default=0.4, ge=0, le=10, description="Exponent of 1 + |delta|.")
    similarity_exponent: float = Field(
        default=0.6, ge=0, le=10, description="Exponent of 1 + similarity to the negative prefix."
    )


def reverse(
    values: Tensor,
    delta: Tensor,
    negative_end: Tensor,
    *,
    scale: float,
    norm_exponent: float,
    similarity_exponent: float,
) -> Tensor:
    """Move head outputs away from the negative prefix, keeping their norm; all (B, heads, size).

    v - scale (1 + |delta|)^a (1 + relu cos(v, v_neg_end))^b delta replaces the output v of each
    head. Then the vector of all heads is scaled to its old norm.
    """
    by_norm = (1 + delta.norm(dim=-1, keepdim=True)) ** norm_exponent
    likeness = cosine_similarity(values, negative_end, dim=-1).clamp(min=0)[..., None]
    moved = values - scale * by_norm * (1 + likeness) ** similarity_exponent * delta
    norm = moved.norm(dim=(-2, -1), keepdim=True)
    # A vector of zeros stays as it is.
    kept: Tensor = moved * (values.norm(dim=(-2, -1), keepdim=True) / norm.clamp(min=1e-12))
    return kept


class _ReversedWriting(Writing):
    """Has a second stream, of 2B rows with the prefixes, which reads each token first."""

    reads_per_token = 3

    def __init__(
        self,
        baseline: Reversal,
        options: ReversalOptions,
        ids: list[list[int]],
        prefixed: list[list[int]],
        tokens: int,
    ) -> None:
        self._baseline, self._options = baseline, options
        self._delta: dict[int, Tensor] = {}
        reader = baseline.reader
        # The rows must be read together, aligned with their deltas.
        with baseline.heads.hooked(self._note):
            self._prefixed = reader.read(prefixed, tokens, together=True)
        with baseline.heads.hooked(self._move):
            stream = reader.read(ids, tokens, together=True)
        b = len(ids)
        reads = [len(ids[i]) + len(prefixed[i]) + len(prefixed[b + i]) for i in range(b)]
        super().__init__(stream, reads)

    def advance(self, tokens: Tensor) -> None:
        with self._baseline.heads.hooked(self._note):
            self._prefixed.advance(tokens.repeat(2))
        with self._baseline.heads.hooked(self._move):
            super().advance(tokens)

    def _note(self, layer: int, merged: Tensor) -> None:
        positive, negative = self._baseline.heads.split(merged[:, -1].float()).chunk(2)
        self._delta[layer] = negative - positive

    def _move(self, layer: int, merged: Tensor) -> Tensor:
        values, options = self._baseline.heads.split(merged[:, -1].float()), self._options
        moved = reverse(
            values,
            self._delta[layer],
            self._baseline.negative_end[layer],
            scale=options.scale,
            norm_exponent=options.norm_exponent,
            similarity_exponent=options.similarity_exponent,
        )
        return torch.cat([merged[:, :-1], moved.flatten(-2)[:, None].to(merged.dtype)], dim=1)


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

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        prefixed = self.engine.tokenize(
            [prefix + prompt for prefix in (self.positive, self.negative) for prompt in prompts]
        )
        _ = self.negative_end  # read before any hook is set
        return _ReversedWriting(self, self._options, ids, prefixed, tokens)

    @cached_property
    def heads(self) -> Heads:
        return find_heads(self.engine.model, self.engine.name)

    @cached_property
    def reader(self) -> Reader:
        return Reader(self.engine.model)

    @cached_property
    def negative_end(self) -> dict[int, Tensor]:
        """The heads' outputs at the end of the negative prefix, (heads, size), by layer."""
        ends: dict[int, Tensor] = {}

        def note(layer: int, merged: Tensor) -> None:
            ends[layer] = self.heads.split(merged[0, -1].float())

        with self.heads.hooked(note):
            self.reader.read(self.engine.tokenize([self.negative.strip()]), 0)
        return ends
