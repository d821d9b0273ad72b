"""`pplm`: Dathathri et al. 2020, "Plug and Play Language Models" (ICLR 2020, arXiv:1912.02164).

Before each token, the cached keys and values are moved a few steps down the gradient of a loss. The
loss is that of a linear classifier on the mean hidden state of the text (including one expected
next token), plus a small divergence from the unmodified model. The token is drawn from
p_moved^fuse p^(1 - fuse), and the moved cache is kept. The steps are those of the authors' code
(uber-research/PPLM, `run_pplm.py`). The settings are those with which the authors of DExperts ran
PPLM (step 0.2, 10 iterations). Gradients are normalised for each row of a batch separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import Field
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import pad, softplus
from transformers.cache_utils import DynamicCache

from tide.baselines.artefacts import load_sibling
from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import TOXIC, FitTask, Fitted
from tide.baselines.lanes import SteeredLane
from tide.baselines.training import before_end, classified, hidden_states
from tide.engines.local.batch import Row
from tide.engines.local.stream import Forward, left_pad, token_positions

_SMALL = 1e-15
# Weights of the moved distribution in the draw, and of the divergence in the loss.
_FUSE, _DIVERGENCE = 0.9, 0.01

# Keys and values of each layer in turn, each (B, heads, T, size).
Cache = list[Tensor]


class PplmOptions(Options):
    stepsize: Strength = Field(default=0.2, description="Step length, in every layer.")
    iterations: int = Field(default=10, ge=1, le=1_000, description="Steps before each token.")


def objective(prediction: Tensor, moved: Tensor, unmoved: Tensor) -> Tensor:
    """Return the sum of -log P(non-toxic) + 0.01 KL(moved || unmoved) over rows; a scalar.

    prediction: (B,), logit of P(non-toxic). moved, unmoved: logits (B, V).
    """
    log_p, log_unmoved = moved.log_softmax(dim=-1), unmoved.log_softmax(dim=-1)
    return softplus(-prediction).sum() + _DIVERGENCE * (log_p.exp() * (log_p - log_unmoved)).sum()


def step_down(cache: Cache, gradients: Sequence[Tensor], stepsize: float) -> Cache:
    """Move `cache` against its gradients, by a step of length `stepsize` in every row and layer.

    The keys and the values of a layer together move by this length.
    """
    moved = []
    for layer in range(0, len(cache), 2):
        # In half precision the length of a small gradient would be 0.
        steps = [gradient.float() for gradient in gradients[layer : layer + 2]]
        norms = torch.stack([step.flatten(1).norm(dim=1) for step in steps])
        length = norms.norm(dim=0)[:, None, None, None] + _SMALL
        for part, step in zip(cache[layer : layer + 2], steps, strict=True):
            moved.append(part - (stepsize * step / length).to(part.dtype))
    return moved


class PplmLane(SteeredLane):
    """Has two caches: one of the text so far, and a moved cache of all tokens but the last.

    The caches, which gradients flow through, are rebuilt at each token, so rows enter and leave
    together. model: a copy of the engine's model that supports gradients. Only forward tokens are
    counted; a backward pass takes about as long as two forward passes.
    """

    baseline: Pplm

    def __init__(self, *arguments: Any, model: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.as_group = True
        self._forward, self._table = Forward(model), model.get_input_embeddings().weight

    def enter(self, rows: Sequence[Row]) -> None:
        super().enter(rows)
        with torch.inference_mode(False), torch.no_grad():
            device = self._table.device
            ids = [torch.tensor(row.prompt_ids, device=device) for row in rows]
            tokens, self._mask = left_pad(ids)
            self._logits, hidden, self._unmoved_cache = self._run([], input_ids=tokens)
            hidden = hidden * self._mask[..., None]
            # `_sum` and `_past` cover all tokens but the last.
            self._sum, self._hidden = hidden[:, :-1].sum(dim=1), hidden[:, -1]
            self._past = [part[:, :, :-1] for part in self._unmoved_cache]
            self._last = tokens[:, -1]
        for row in rows:
            row.read += len(row.prompt_ids)

    def _run(self, cache: Cache, ahead: int = 0, **inputs: Tensor) -> tuple[Tensor, Tensor, Cache]:
        """Return next-token logits (B, V), last hidden states (B, T, d), and the longer cache."""
        held = DynamicCache()
        for layer in range(0, len(cache), 2):
            held.update(cache[layer], cache[layer + 1], layer // 2)
        mask = pad(self._mask, (0, ahead), value=1)
        (read,) = inputs.values()
        positions = token_positions(mask)[:, -read.shape[1] :]
        if self._forward.context is not None:  # ended rows can exceed the context
            positions = positions.clamp(max=self._forward.context - 1)
        out = self._forward(mask, positions, held, output_hidden_states=True, **inputs)
        longer = [part for layer in held.layers for part in (layer.keys, layer.values)]
        return out.logits[:, -1].float(), out.hidden_states[-1].float(), longer

    def shift(self, scores: Tensor) -> Tensor:
        with torch.inference_mode(False):
            moved = self._moved()
        for row in self.rows:
            row.read += 2 * self.baseline.options.iterations + 1
        shifted = scores + _FUSE * (moved - self.stream.logits.float())
        return shifted.masked_fill(scores == -torch.inf, -torch.inf)

    def _moved(self) -> Tensor:
        """Move the cache and keep it for the next token; returns logits (B, V) with this cache."""
        last, options = self._last[:, None], self.baseline.options
        weight, bias = self.baseline.classifier
        scale = self.baseline.engine.embedding_scale  # not 1 in Gemma
        count = self._mask.sum(dim=1)[:, None]
        for _ in range(options.iterations):
            past = [part.detach().requires_grad_() for part in self._past]
            with torch.enable_grad():
                logits, hidden, _ = self._run(past, input_ids=last)
                follows = logits.softmax(dim=-1)[:, : len(self._table)].to(self._table.dtype)
                x = scale * (follows @ self._table)[:, None]
                _, ahead, _ = self._run(self._unmoved_cache, ahead=1, inputs_embeds=x)
                mean = (self._sum + hidden[:, -1].detach() + ahead[:, -1]) / (count + 1)
                loss = objective(mean @ weight + bias, logits, self._logits)
            gradients = torch.autograd.grad(loss, past)
            self._past = step_down(self._past, gradients, options.stepsize)
        with torch.no_grad():
            logits, _, self._past = self._run(self._past, input_ids=last)
        return logits

    def advance(self, tokens: Tensor) -> None:
        super().advance(tokens)
        with torch.inference_mode(False), torch.no_grad():
            self._last, self._sum = tokens.clone(), self._sum + self._hidden
            self._mask = pad(self._mask, (0, 1), value=1)
            self._logits, hidden, self._unmoved_cache = self._run(
                self._unmoved_cache, input_ids=self._last[:, None]
            )
            self._hidden = hidden[:, -1]
        for row in self.rows:
            row.read += 1


class Pplm(DecodingBaseline):
    """Moves the key-value cache before every token, along gradients of a toxicity classifier."""

    kind = "pplm"
    options_class = PplmOptions
    fan_out = 4  # a backward pass takes the memory of four sequences
    options: PplmOptions

    def lanes(self) -> MakeLane:
        if self.options.stepsize == 0:
            return super().lanes()
        return partial(PplmLane, model=self._model)

    @cached_property
    def _model(self) -> Any:
        # The engine's packed weights have no gradients.
        with torch.inference_mode(False):
            return load_sibling(self.engine, self.engine.name)

    @cached_property
    def classifier(self) -> tuple[Tensor, Tensor]:
        device, tensors = self.engine.device, self.artefact.tensors
        return tensors["weight"].to(device), tensors["bias"].to(device)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Fit a logistic regression on the texts' mean last hidden states: weight (d,), bias (1,).

        Figure: AUC on held-out texts.
        """
        train, held_out = task.texts()
        means = _means(task, [text.text for text in train])
        centre, spread = means.mean(dim=0), means.std(dim=0) + 1e-6
        clean = [text.toxicity < TOXIC for text in train]
        regression = LogisticRegression(max_iter=1_000).fit(
            ((means - centre) / spread).numpy(), clean
        )
        weight = torch.from_numpy(regression.coef_[0]).float() / spread
        bias = torch.from_numpy(regression.intercept_).float() - weight @ centre
        scores = _means(task, [text.text for text in held_out]) @ weight + bias
        tensors = {"weight": weight, "bias": bias}
        return classified(tensors, held_out, (-scores).tolist())


def _means(task: FitTask, texts: Sequence[str]) -> Tensor:
    """Return the mean of each text's last hidden states, float32, (n, d)."""

    def mean(hidden: Tensor, lengths: Tensor) -> Tensor:
        of_text = hidden.float() * before_end(lengths, hidden.shape[1])[..., None]
        return of_text.sum(dim=1) / lengths[:, None]

    return hidden_states(task, texts, mean)
