"""`destein`: Li et al. 2024, "DeStein: Navigating Detoxification of Language Models".

ACL Findings 2024, arXiv:2404.10464: universal steering pairs, head-wise activation fusion. A vector
from toxic to neutral text is taken away from every attention head's output (authors' code:
LizLizLi/DeStein, `lss_utils.py` for the rule, `act_utils.py` for the vectors).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from tide.baselines.base import Options
from tide.baselines.common.decoding import DecodingBaseline, Reader
from tide.baselines.common.fitting import FitTask, Fitted, auc
from tide.baselines.common.layers import Heads, find_heads
from tide.baselines.common.settings import Strength
from tide.data.labelled import Pair
from tide.engines.local.decode import Writing

_LAST = 8  # tokens at the end of a text whose mean stands for it
_PAIRS = 20
_HELD_OUT = 200


class DesteinOptions(Options):
    strength = "alpha"

    alpha: Strength = Field(default=0.4, description="Length of the step.")


def steer(values: Tensor, vectors: Tensor, alpha: float) -> Tensor:
    """Head outputs (..., heads, size) moved against `vectors` (heads, size).

    Each head becomes norm(norm(x) - alpha (1 + relu cos(x, v)) norm(v)); then the whole vector of
    all heads is scaled to its old norm. As in the authors' code, this makes all heads equally long.
    """
    likeness = cosine_similarity(values, vectors.expand_as(values), dim=-1).clamp(min=0)[..., None]
    steps = alpha * (1 + likeness) * normalize(vectors, dim=-1)
    moved = normalize(normalize(values, dim=-1) - steps, dim=-1)
    norm = moved.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-12)
    kept: Tensor = moved * (values.norm(dim=(-2, -1), keepdim=True) / norm)
    return kept


class Destein(DecodingBaseline):
    """Steers every layer's heads at every token. alpha = 0 leaves the model alone.

    (The rule itself is not continuous there: it makes a layer's heads equally long for any alpha.)
    """

    kind = "destein"
    options_class = DesteinOptions
    learned = True
    _options: DesteinOptions

    def attached(self) -> AbstractContextManager[object]:
        if self._options.alpha == 0:
            return nullcontext()
        return self._heads.hooked(self._steer)

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        reader = Reader(self.engine.model, hooks=True)
        return Writing(reader.read(ids, tokens), [len(row) for row in ids])

    def _steer(self, layer: int, merged: Tensor) -> Tensor:
        values = self._heads.split(merged.float())
        return steer(values, self._vectors[layer], self._options.alpha).flatten(-2).to(merged.dtype)

    @cached_property
    def _heads(self) -> Heads:
        return find_heads(self.engine.model, self.engine.name)

    @cached_property
    def _vectors(self) -> Tensor:
        """(layers, heads, size), from neutral to toxic."""
        layers = self._heads.projections
        first: Any = layers[0]
        width = getattr(first, "in_features", None) or first.nx  # as transformers' Conv1D has it
        vectors = self.artefact.tensor("vectors", len(layers), width)
        return self._heads.split(vectors.float()).to(self.engine.device)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Vectors (layers, heads * size): the mean over 20 pairs of toxic minus neutral.

        Figures: how often a held-out toxic text lies further along them than a neutral one.
        Raises InputError for too few pairs.
        """
        task.train.need_pairs(_PAIRS)
        task.held_out.need_pairs(2)
        means = _means(task, task.train.pairs[:_PAIRS])
        vectors = (means[0] - means[1]).mean(dim=0)
        measured = _means(task, task.held_out.pairs[:_HELD_OUT])
        # Every head counts the same, as in the rule.
        toxic, neutral = ((side * vectors).sum(dim=(1, 2)).tolist() for side in measured)
        labels = [True] * len(toxic) + [False] * len(neutral)
        return Fitted({"vectors": vectors}, {"auc": auc(labels, toxic + neutral)})


@torch.inference_mode()
def _means(task: FitTask, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """The heads' outputs, mean of the last 8 tokens, of toxic and of neutral sides of `pairs`.

    Both (pairs, layers, heads * size), in float32.
    """
    heads = find_heads(task.model, task.name)
    sides = []
    for texts in ([pair.toxic for pair in pairs], [pair.neutral[0] for pair in pairs]):
        rows = []
        # As the authors do: a full stop at the end would say the same in both.
        for ids in task.tokenize([text.strip(" .") or text for text in texts]):
            layers: list[Tensor] = []

            def note(layer: int, merged: Tensor, layers: list[Tensor] = layers) -> None:
                layers.append(merged[0, -_LAST:].float().mean(dim=0).cpu())

            with heads.hooked(note):
                task.model(input_ids=torch.tensor([ids], device=task.model.device), use_cache=False)
            rows.append(torch.stack(layers))
            task.progress("reading pairs", len(rows), len(pairs))
        sides.append(torch.stack(rows))
    return sides[0], sides[1]
