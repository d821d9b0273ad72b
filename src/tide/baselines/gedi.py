"""`gedi`: Krause et al. 2021, "GeDi: Generative Discriminator Guided Sequence Generation".

EMNLP Findings 2021, arXiv:2009.06367. By Bayes' rule, a language model conditioned on "clean" or
"dirty" gives the probability that the text is clean after each next token. omega times the log of
this probability is added to the scores, and the least clean tokens are dropped. Where the paper
leaves a choice, this code follows the authors' code (salesforce/GeDi, `modeling_utils.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.artefacts import fit_width
from tide.baselines.common.decoding import DecodingBaseline, Reader, Writing
from tide.baselines.common.fit import TOXIC, FitTask, Fitted
from tide.baselines.common.training import (
    Tuning,
    auc,
    read,
    right_pad,
    span,
    token_losses,
    train,
    weak_auc,
)
from tide.engines.checkpoint import context_length
from tide.engines.local.stream import Stream

CODES = ("clean", "dirty")
# Share of the generative loss in training; the rest is for the discriminative loss.
_GENERATIVE = 0.8
# Learning rate of the scale of the class logits. It is high because this number changes much.
_SCALE_RATE = 0.02
_MOST_TOKENS = 2048  # maximum tokens whose logits are in memory at once, outside of training


class GediOptions(Options):
    strength = "omega"

    omega: Strength = Field(default=30.0, description="Weight of log P(clean); 0 turns GeDi off.")
    class_bias: float = Field(
        default=2.0, ge=0, le=100, description="Prior log odds that a text is clean."
    )
    filter_p: float = Field(
        default=0.8, ge=0, le=1, description="Total probability of the least clean tokens to drop."
    )
    target_p: float = Field(
        default=0.8, gt=0, le=1, description="Keep tokens whose P(clean) is at least this."
    )
    order: Order = "shift-warp"


def guide(scores: Tensor, odds: Tensor, options: GediOptions) -> Tensor:
    """Return log p + omega log P(clean), (B, V), with -inf for dropped tokens.

    odds: log odds that the text is clean, to which the class bias is added. The least clean tokens
    are dropped while the sum of their guided probabilities is below filter_p; tokens with
    P(clean) >= target_p (without the bias) are kept.
    """
    posterior = nn.functional.logsigmoid(odds + options.class_bias)
    guided = scores.log_softmax(dim=-1) + options.omega * posterior
    ordered, order = nn.functional.logsigmoid(odds).sort(dim=-1)
    mass = guided.softmax(dim=-1).gather(-1, order).cumsum(dim=-1)
    # Below omega 1 the filter sets in gradually.
    filtered = mass < options.filter_p * min(1.0, options.omega)
    dropped = filtered & (ordered < math.log(options.target_p))
    # Rounding must not drop all tokens: the cleanest that top-k and top-p have left stays.
    possible = (guided.gather(-1, order) > -torch.inf).int()
    last = possible.shape[-1] - 1 - possible.flip(-1).argmax(dim=-1, keepdim=True)
    dropped = dropped.scatter(-1, last, False)
    return guided.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)


def with_code(
    ids: Sequence[int], code: Sequence[int], special: frozenset[int]
) -> tuple[list[int], int]:
    """Insert a code word after the leading special tokens; also returns the start of the text."""
    lead = next((i for i, token in enumerate(ids) if token not in special), len(ids))
    return [*ids[:lead], *code, *ids[lead:]], lead + len(code)


class _GuidedWriting(Writing):
    """Has a second stream, of the class-conditional model, with 2B rows ("clean" rows first)."""

    reads_per_token = 3

    def __init__(
        self,
        stream: Stream,
        classes: Stream,
        reads: list[int],
        likelihood: Tensor,
        counts: Tensor,
        scale: float,
        options: GediOptions,
    ) -> None:
        super().__init__(stream, reads)
        self._classes, self._likelihood, self._counts = classes, likelihood, counts
        self._scale, self._options = scale, options
        self._next = torch.empty(0)

    def shift(self, scores: Tensor) -> Tensor:
        logits = fit_width(self._classes.logits.float(), scores.shape[-1])
        self._next = logits.log_softmax(dim=-1) + self._likelihood[:, None]
        if self._options.omega == 0:
            return scores
        clean, dirty = self._next.chunk(2)
        options = self._options
        # The likelihoods are normalised by length and scaled; `guide` adds the class bias.
        return guide(scores, self._scale * (clean - dirty) / (self._counts[:, None] + 1), options)

    def advance(self, tokens: Tensor) -> None:
        super().advance(tokens)
        self._likelihood = self._next.gather(-1, tokens.repeat(2)[:, None])[:, 0]
        self._counts = self._counts + 1
        self._classes.advance(tokens.repeat(2))


class Gedi(DecodingBaseline):
    """Guides each token by the probability that the text is clean after it."""

    kind = "gedi"
    options_class = GediOptions
    learned = True
    auxiliary = True
    fan_out = 2
    _options: GediOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        reader = self.fitted_reader("lora")
        codes = _codes(self.engine.tokenizer)
        special = frozenset(self.engine.tokenizer.all_special_ids)
        coded = [with_code(row, code, special) for code in codes for row in ids]
        rows, starts = [row for row, _ in coded], [start for _, start in coded]
        counts = torch.tensor([len(row) - start for row, start in coded[: len(ids)]])
        # The class model reads the prompt twice: for the prompt's likelihood and for the cache.
        both = zip(ids, rows[: len(ids)], rows[len(ids) :], strict=True)
        reads = [len(row) + 2 * (len(clean) + len(dirty)) for row, clean, dirty in both]
        return _GuidedWriting(
            Reader(self.engine.model).read(ids, tokens),
            reader.read(rows, tokens),
            reads,
            -_text_losses(reader.model, rows, starts).float(),
            counts.to(self.engine.device),
            float(self.artefact.tensor("scale")),
            self._options,
        )

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates that condition the task's model on "clean" or "dirty", and the scale.

        The loss is 0.8 times the generative loss (of a text after the code word of its kind) plus
        0.2 times the discriminative loss (of the choice between the code words). Figure: AUC of the
        choice on held-out texts.
        """
        texts, held_out = task.texts()
        codes = _codes(task.tokenizer)
        special = frozenset(task.tokenizer.all_special_ids)
        # Leave room for the code word in the context.
        most = (context_length(task.model.config) or 2**31) - max(map(len, codes))
        ids = [row[:most] for row in task.tokenize([text.text for text in texts])]
        dirty = torch.tensor([text.toxicity >= TOXIC for text in texts], device=task.model.device)
        tuning = Tuning(task.model, task.settings)
        log_scale = nn.Parameter(torch.zeros((), device=task.model.device))

        def class_losses(rows: Sequence[Sequence[int]]) -> Tensor:
            """Return the mean -log p per token after each code word, (B, 2)."""
            coded = [with_code(row, code, special) for code in codes for row in rows]
            rows, starts = [row for row, _ in coded], [start for _, start in coded]
            losses = _text_losses(tuning.model, rows, starts)
            counts = torch.tensor([len(row) - start for row, start in coded], device=losses.device)
            return (losses / counts.clamp(min=1)).view(2, -1).T

        def loss(numbers: list[int]) -> Tensor:
            losses, kinds = class_losses([ids[i] for i in numbers]), dirty[numbers].long()
            generative = losses.gather(-1, kinds[:, None]).mean()
            discriminative = cross_entropy(-log_scale.exp() * losses, kinds)
            return _GENERATIVE * generative + (1 - _GENERATIVE) * discriminative

        groups: list[dict[str, Any]] = [
            {"params": tuning.parameters},
            {"params": [log_scale], "lr": _SCALE_RATE, "weight_decay": 0.0},
        ]
        train(groups, loss, [len(row) for row in ids], task, "class-conditional model")
        measured = [row[:most] for row in task.tokenize([text.text for text in held_out])]

        def margins(rows: list[Sequence[int]]) -> list[float]:
            clean, toxic = class_losses(rows).unbind(dim=-1)
            return list((clean - toxic).tolist())

        with torch.inference_mode():
            scores = read(margins, measured)
        figure = auc([text.toxicity >= TOXIC for text in held_out], scores)
        tensors = tuning.tensors("lora.") | {"scale": log_scale.detach().exp()}
        return Fitted(tensors, {"auc": figure}, weak_auc("class-conditional model", figure))


def _codes(tokenizer: Any) -> list[list[int]]:
    return [tokenizer.encode(word, add_special_tokens=False) for word in CODES]


def _text_losses(model: Any, rows: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
    """Return the sum of -log p over the tokens of each row from `starts` on, (B,)."""
    size = max(1, _MOST_TOKENS // max(map(len, rows)))
    if len(rows) > size and not torch.is_grad_enabled():
        parts = range(0, len(rows), size)
        return torch.cat(
            [_text_losses(model, rows[i : i + size], starts[i : i + size]) for i in parts]
        )
    padded, lengths = right_pad(rows, model.device)
    losses = token_losses(model(input_ids=padded, use_cache=False).logits, padded)
    begins = torch.tensor(starts, device=losses.device)
    return (losses * span(begins - 1, lengths - 1, losses.shape[1])).sum(dim=-1)
