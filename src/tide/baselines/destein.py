"""`destein`: Li et al. 2024, "DeStein: Navigating Detoxification of Language Models".

ACL Findings 2024, arXiv:2404.10464: universal steering pairs. At every token, the output of each
attention layer is moved away from a direction that points from neutral to toxic text. The authors'
code is LizLizLi/DeStein (`lss_utils.py` has the rule, `act_utils.py` and `probs.py` the vectors).

The paper's rule for single heads is in the authors' code, too, but never runs: the argument that
selects it is False by default and is not given. So this is the rule for the whole vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import Reader
from tide.baselines.layers import Heads, find_heads
from tide.baselines.reversal import Reversal
from tide.baselines.training import auc
from tide.data.texts import Pair

_LAST = 8  # number of final tokens of a text, whose mean represents the text
_PAIRS = 20
_PROBED = 0.8  # share of the pairs that the probes learn from
_HELD_OUT = 200
# The authors' alpha for some architectures, and for all other architectures.
_ALPHAS, _ALPHA = {"gpt2": 0.4}, 0.3


class DesteinOptions(Options):
    strength = "alpha"

    alpha: Strength | None = Field(
        default=None, description="Step length; by default 0.4 for GPT-2, 0.3 for other models."
    )


def steer(values: Tensor, vectors: Tensor, alpha: float) -> Tensor:
    """Steer attention outputs (..., d) away from `vectors` (d,), keeping the norm of the outputs.

    Returns |x| unit(unit(x) - alpha unit(v)), where unit(x) = x / |x|.
    """
    moved = normalize(normalize(values, dim=-1) - alpha * normalize(vectors, dim=-1), dim=-1)
    steered: Tensor = moved * values.norm(dim=-1, keepdim=True)
    return steered


class Destein(DecodingBaseline):
    """Steers every layer's attention at every token. alpha = 0 leaves the model unchanged."""

    kind = "destein"
    options_class = DesteinOptions
    learned = True
    _options: DesteinOptions

    def resolved_options(self, options: Options) -> Any:
        if getattr(options, "alpha", None) is not None:
            return options
        alpha = _ALPHAS.get(self.engine.model.config.model_type, _ALPHA)
        return options.model_copy(update={"alpha": alpha})

    def drawn_from(self) -> Reader:
        if not self._options.alpha:
            return super().drawn_from()
        hooks = partial(self._heads.hooked, self._steer, outputs=True)
        _ = self._vectors  # checked here, not at the first step
        return self.reader(self.engine.model, hooks=hooks)

    def _steer(self, layer: int, added: Tensor) -> Tensor:
        moved = steer(added.float(), self._vectors[layer], self._options.alpha or 0.0)
        return moved.to(added.dtype)

    @cached_property
    def _heads(self) -> Heads:
        return find_heads(self.engine.model, self.engine.name)

    @cached_property
    def _vectors(self) -> Tensor:
        """Directions from neutral to toxic text, (layers, hidden)."""
        shape = len(self._heads.projections), self.engine.model.config.get_text_config().hidden_size
        return self.artefact.tensor("directions", *shape).float().to(self.engine.device)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Compute directions (layers, hidden): weighted mean differences of toxic and neutral text.

        There are 20 pairs of texts, and each text follows a prefix that names its kind. The slice
        of a head is multiplied by 1 + the accuracy of the head's probe. Figures: AUC of held-out
        texts (without prefix) by their similarity to the directions, and the mean accuracy of the
        probes. Raises InputError for too few pairs.
        """
        task.train.need_pairs(_PAIRS)
        task.held_out.need_pairs(2)
        prefixes = Reversal.negative, Reversal.positive
        sides = _means(task, task.train.pairs[:_PAIRS], prefixes)
        heads = _slices(find_heads(task.model, task.name), sides[0].shape[-1])
        weights = 1 + _accuracies(sides, heads, task.settings.seed)
        difference = (sides[0] - sides[1]).mean(dim=0)
        directions = (_cut(difference, heads) * weights[..., None]).flatten(-2)
        measured = _means(task, task.held_out.pairs[:_HELD_OUT], ("", ""))
        # All layers have the same weight, as in the steering rule.
        toxic, neutral = (
            cosine_similarity(side, directions, dim=-1).mean(dim=-1).tolist() for side in measured
        )
        labels = [True] * len(toxic) + [False] * len(neutral)
        figures = {"auc": auc(labels, toxic + neutral), "probes": float(weights.mean()) - 1}
        return Fitted({"directions": directions}, figures)


def _cut(hidden: Tensor, heads: int) -> Tensor:
    """Reshape (..., d) to (..., heads, d / heads)."""
    return hidden.reshape(*hidden.shape[:-1], heads, -1)


def _slices(heads: Heads, width: int) -> int:
    """Return the number of slices of the hidden state: the heads, if they divide the width."""
    return math.gcd(heads.count, width)


def _accuracies(sides: tuple[Tensor, Tensor], heads: int, seed: int) -> Tensor:
    """Return the accuracy of a probe of each slice on held-out pairs (a fifth), (layers, heads).

    sides: outputs (pairs, layers, hidden) of toxic and of neutral texts.
    """
    pairs, layers = sides[0].shape[:2]
    seen = round(_PROBED * pairs)

    def rows(first: int, last: int) -> tuple[Tensor, NDArray[np.int64]]:
        outputs = _cut(torch.cat([side[first:last] for side in sides]), heads)
        return outputs, np.repeat([1, 0], last - first)

    (train, labels), (test, truth) = rows(0, seen), rows(seen, pairs)
    accuracies = torch.empty(layers, heads)
    for layer in range(layers):
        for head in range(heads):
            probe = LogisticRegression(random_state=seed, max_iter=1000)
            probe.fit(train[:, layer, head].numpy(), labels)
            accuracies[layer, head] = probe.score(test[:, layer, head].numpy(), truth)
    return accuracies


@torch.inference_mode()
def _means(
    task: FitTask, pairs: Sequence[Pair], prefixes: tuple[str, str]
) -> tuple[Tensor, Tensor]:
    """Average the attention outputs of all texts of `pairs` over the last 8 tokens of each text.

    Returns the averages of the toxic and of the neutral texts, both (pairs, layers, hidden),
    float32. prefixes: texts put before the toxic and before the neutral texts.
    """
    heads = find_heads(task.model, task.name)
    sides = []
    for prefix, texts in zip(
        prefixes, ([p.toxic for p in pairs], [p.neutral[0] for p in pairs]), strict=True
    ):
        rows = []
        # As in the authors' code: full stops at the end of both texts would hide the difference.
        for ids in task.tokenize([prefix + (text.strip(" .") or text) for text in texts]):
            layers: list[Tensor] = []

            def note(layer: int, added: Tensor, layers: list[Tensor] = layers) -> None:
                layers.append(added[0, -_LAST:].float().mean(dim=0).cpu())

            with heads.hooked(note, outputs=True):
                task.model(input_ids=torch.tensor([ids], device=task.model.device), use_cache=False)
            rows.append(torch.stack(layers))
            task.progress("reading pairs", len(rows), len(pairs))
        sides.append(torch.stack(rows))
    return sides[0], sides[1]
