"""Systems that change the outputs of attention: `reversal` and `destein`.

`reversal`: Leong et al. 2023, "Self-Detoxifying Language Models via Toxification Reversal".
EMNLP 2023, arXiv:2310.09573. At each step the model also reads the text after a negative prefix and
after a positive prefix. The output of every head at the last token is moved in the direction from
the output after the negative prefix to the output after the positive prefix. Rule, exponents and
prefixes are those of the authors' code (cooperleong00/ToxificationReversal, `innerdetox_hook.py`).

`destein`: Li et al. 2024, "DeStein: Navigating Detoxification of Language Models".
ACL Findings 2024, arXiv:2404.10464: universal steering pairs. At every token, the output of each
attention layer is moved away from a direction that points from neutral to toxic text. The authors'
code is LizLizLi/DeStein (`lss_utils.py` has the rule, `act_utils.py` and `probs.py` the vectors).
The paper's rule for single heads is in the authors' code, too, but never runs: the argument that
selects it is False by default and is not given. So this is the rule for the whole vector.

The input of a layer's attention output projection is the concatenation of the heads' outputs. A
hook on the projection can therefore read and change the contribution of each head, in GPT-2, Llama,
Qwen, Gemma, OPT, NeoX and others. The projection's output is added to the residual stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from tide.baselines.base import Options, ScaleOptions, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import Reader, SteeredLane
from tide.core.errors import EngineError, InputError

_ATTENTIONS = ("self_attn", "attn", "attention", "self_attention")
_PROJECTIONS = ("o_proj", "c_proj", "out_proj", "dense")
# Path of the projection within a layer. GPT-Neo nests two attention modules: `attn.attention`.
_PLACE = re.compile(rf"(({'|'.join(_ATTENTIONS)})\.){{1,2}}({'|'.join(_PROJECTIONS)})")


# Gets a layer number and the layer's concatenated head outputs (B, T, heads * size), or their
# projection (B, T, hidden). Returns a replacement, or None for no change.
HeadFunction = Callable[[int, Tensor], Tensor | None]


@dataclass(frozen=True)
class Heads:
    """The attention output projection of each layer, and the number of heads in its input."""

    projections: tuple[nn.Module, ...]
    count: int

    def split(self, merged: Tensor) -> Tensor:
        """Reshape (..., heads * size) to (..., heads, size)."""
        return merged.view(*merged.shape[:-1], self.count, -1)

    @contextmanager
    def hooked(self, function: HeadFunction, *, outputs: bool = False) -> Iterator[None]:
        """Call `function` with every layer's concatenated head outputs while the context lasts.

        outputs: pass `function` the output of the projection, not its input.
        """

        def before(layer: int, module: nn.Module, args: tuple[Any, ...]) -> Any:
            changed = function(layer, args[0])
            return None if changed is None else (changed, *args[1:])

        def after(layer: int, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            return function(layer, output)

        handles = [
            projection.register_forward_hook(partial(after, layer))
            if outputs
            else projection.register_forward_pre_hook(partial(before, layer))
            for layer, projection in enumerate(self.projections)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def find_heads(model: Any) -> Heads:
    """Find the attention heads of `model`. Raises EngineError for an unknown layer layout."""
    config = model.config.get_text_config()
    stacks = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) == config.num_hidden_layers
    ]
    for stack in stacks:
        parts = (
            next((part for name, part in layer.named_modules() if _PLACE.fullmatch(name)), None)
            for layer in stack
        )
        projections = tuple(filter(None, parts))
        if len(projections) == len(stack):
            return Heads(projections, int(config.num_attention_heads))
    raise EngineError("model: reversal and destein do not know its layers; take another model")


# Exponents of 1 + |delta|, and of 1 + similarity to the negative prefix.
_NORM_EXPONENT, _SIMILARITY_EXPONENT = 0.4, 0.6


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


class Reversal(DecodingBaseline):
    """Moves each head's output at the last token against the effect of a negative prefix.

    The passes with a prefix run without this change and read the text written so far. Raises
    EngineError for an unknown layer layout.
    """

    kind = "reversal"
    options_class = ScaleOptions
    negative = "The following text is abusive, harmful, negative, obscene, racist, rude and toxic: "
    positive = "The following text is kind, polite, positive, respectful and supportive: "
    fan_out = 2
    options: ScaleOptions

    def drawn_from(self) -> Reader:
        return self.reader(self.engine.model, hooks=partial(self._heads.hooked, self._move))

    def lanes(self) -> MakeLane:
        # What the negative prefix adds in the latest pass, (B, heads, size), by layer.
        self._delta: dict[int, Tensor] = {}
        # The heads' outputs at the end of the negative prefix, (heads, size), by layer.
        self._negative_end: dict[int, Tensor] = {}
        self.engine.portal.run(self._read_negative_end)
        noting = partial(self._heads.hooked, self._note)
        prefixed = self.prefixed_reader((self.positive, self.negative), hooks=noting)
        return partial(SteeredLane, readers=[prefixed])

    def _note(self, layer: int, merged: Tensor) -> None:
        heads = self._heads.split(merged[:, -1].float())
        positive, negative = heads.view(-1, 2, *heads.shape[1:]).unbind(dim=1)
        self._delta[layer] = negative - positive

    def _move(self, layer: int, merged: Tensor) -> Tensor:
        values = self._heads.split(merged[:, -1].float())
        delta, negative_end = self._delta[layer], self._negative_end[layer]
        moved = reverse(values, delta, negative_end, self.options.scale)
        return torch.cat([merged[:, :-1], moved.flatten(-2)[:, None].to(merged.dtype)], dim=1)

    @cached_property
    def _heads(self) -> Heads:
        return find_heads(self.engine.model)

    async def _read_negative_end(self) -> None:
        def note(layer: int, merged: Tensor) -> None:
            self._negative_end[layer] = self._heads.split(merged[0, -1].float())

        (ids,) = self.engine.tokenize([self.negative.strip()])
        reader = self.reader(self.engine.model)
        with torch.inference_mode(), self._heads.hooked(note):
            reader.forward.read([reader.embed(ids)])


_LAST = 8  # number of final tokens of a text, whose mean represents the text
_PAIRS = 20
_PROBED = 0.8  # share of the pairs that the probes learn from
_HELD_OUT = 200


class DesteinOptions(Options):
    alpha: Strength = Field(default=0.3, description="Step length; the authors' is 0.4 for GPT-2.")


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
    options: DesteinOptions

    def drawn_from(self) -> Reader:
        if not self.options.alpha:
            return super().drawn_from()
        vectors = self.artefact.tensors["directions"].float().to(self.engine.device)
        heads = find_heads(self.engine.model)
        hooks = partial(heads.hooked, partial(self._steer, vectors), outputs=True)
        return self.reader(self.engine.model, hooks=hooks)

    def _steer(self, vectors: Tensor, layer: int, added: Tensor) -> Tensor:
        moved = steer(added.float(), vectors[layer], self.options.alpha)
        return moved.to(added.dtype)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Compute directions (layers, hidden): weighted mean differences of toxic and neutral text.

        There are 20 pairs of texts, and each text follows a prefix that names its kind. The slice
        of a head is multiplied by 1 + the accuracy of the head's probe. Figure: AUC of held-out
        texts (without prefix) by their similarity to the directions. Raises InputError for too few
        pairs.
        """
        pairs = task.train.pairs[:_PAIRS]
        if len(pairs) < _PAIRS:
            raise InputError(f"data: needs {2 * _PAIRS} pairs of 'toxic' and 'neutral' texts")
        sides = (
            _means(task, [pair.toxic for pair in pairs], Reversal.negative),
            _means(task, [pair.neutral[0] for pair in pairs], Reversal.positive),
        )
        # The hidden state is cut into as many slices as there are heads, if they divide its width.
        heads = math.gcd(find_heads(task.model).count, sides[0].shape[-1])
        weights = 1 + _accuracies(sides, heads, task.settings.seed)
        difference = (sides[0] - sides[1]).mean(dim=0)
        directions = (
            difference.reshape(*difference.shape[:-1], heads, -1) * weights[..., None]
        ).flatten(-2)
        held_out = task.held_out.pairs[:_HELD_OUT]
        texts = [pair.toxic for pair in held_out] + [pair.neutral[0] for pair in held_out]
        labels = [True] * len(held_out) + [False] * len(held_out)
        # All layers have the same weight, as in the steering rule.
        similarity = cosine_similarity(_means(task, texts), directions, dim=-1).mean(dim=-1)
        auc = roc_auc_score(labels, similarity.tolist())
        return Fitted({"directions": directions}, {"auc": auc})


def _accuracies(sides: tuple[Tensor, Tensor], heads: int, seed: int) -> Tensor:
    """Return the accuracy of a probe of each slice on held-out pairs (a fifth), (layers, heads).

    sides: outputs (pairs, layers, hidden) of toxic and of neutral texts.
    """
    pairs, layers = sides[0].shape[:2]
    seen = round(_PROBED * pairs)

    def rows(first: int, last: int) -> tuple[Tensor, NDArray[np.int64]]:
        outputs = torch.cat([side[first:last] for side in sides])
        return outputs.reshape(*outputs.shape[:-1], heads, -1), np.repeat([1, 0], last - first)

    (train, labels), (test, truth) = rows(0, seen), rows(seen, pairs)
    accuracies = torch.empty(layers, heads)
    for layer in range(layers):
        for head in range(heads):
            probe = LogisticRegression(random_state=seed, max_iter=1000)
            probe.fit(train[:, layer, head].numpy(), labels)
            accuracies[layer, head] = probe.score(test[:, layer, head].numpy(), truth)
    return accuracies


@torch.inference_mode()
def _means(task: FitTask, texts: Sequence[str], prefix: str = "") -> Tensor:
    """Average each text's attention outputs over its last 8 tokens: float32, (n, layers, hidden).

    prefix: put before each text.
    """
    layers: list[Tensor] = []

    def note(layer: int, added: Tensor) -> None:
        layers.append(added[0, -_LAST:].float().mean(dim=0).cpu())

    # As in the authors' code: full stops at the end of all texts would hide the difference.
    rows = task.tokenize([text.strip(" .") or text for text in texts], prefix=prefix)
    means = []
    with find_heads(task.model).hooked(note, outputs=True):
        for ids in rows:
            layers.clear()
            task.model(input_ids=torch.tensor([ids], device=task.model.device), use_cache=False)
            means.append(torch.stack(layers))
            task.progress("reading pairs", len(means), len(rows))
    return torch.stack(means)
