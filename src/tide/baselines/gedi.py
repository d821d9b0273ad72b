"""`gedi`: Krause et al. 2021, "GeDi: Generative Discriminator Guided Sequence Generation".

EMNLP Findings 2021, arXiv:2009.06367. A language model conditioned on "clean" or "dirty" says, by
Bayes' rule, how likely each next token makes the text a clean one; scores gain omega times the log
of that, and the least clean tokens are dropped (authors' code: salesforce/GeDi,
`modeling_utils.py`, which this follows where the paper leaves a choice).
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
# Share of the generative loss in training; the rest is the discriminative one.
_GENERATIVE = 0.8
# The scale of the class logits is one number with far to go: it learns faster.
_SCALE_RATE = 0.02
_MOST_TOKENS = 2048  # whose logits are held at once, outside of training
_HIGHEST = 10.0  # score of the likeliest token while repetition is penalised


class GediOptions(Options):
    strength = "omega"

    omega: Strength = Field(default=30.0, description="Weight of the posterior; 0: no GeDi.")
    class_bias: float = Field(
        default=2.0, ge=0, le=100, description="Log odds that every text is clean beforehand."
    )
    filter_p: float = Field(
        default=0.8, ge=0, le=1, description="The least clean tokens of this mass are dropped..."
    )
    target_p: float = Field(
        default=0.8, gt=0, le=1, description="...unless they are clean with this probability."
    )
    repetition_penalty: float = Field(
        default=1.0, ge=1, le=100, description="Of tokens that were written; its authors' is 1.2."
    )
    order: Order = "shift-warp"

    @property
    def onset(self) -> float:
        """Grows from 0 to 1 with omega, so that the other parts of the method set in gradually."""
        return min(1.0, self.omega)


def guide(scores: Tensor, odds: Tensor, options: GediOptions) -> Tensor:
    """Log p + omega log P(clean) over (B, V), -inf where dropped; odds: log odds of clean.

    The class bias is added to the odds. Tokens are taken from the least to the most clean; those at
    which the sum of their guided probabilities is still below filter_p are dropped, unless P(clean)
    (without the bias) >= target_p.
    """
    posterior = nn.functional.logsigmoid(odds + options.class_bias)
    guided = scores.log_softmax(dim=-1) + options.omega * posterior
    ordered, order = nn.functional.logsigmoid(odds).sort(dim=-1)
    mass = guided.softmax(dim=-1).gather(-1, order).cumsum(dim=-1)
    filtered = mass < options.filter_p * options.onset
    dropped = filtered & (ordered < math.log(options.target_p))
    dropped[:, -1] = False  # rounding must not drop all tokens
    return guided.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), -torch.inf)


def penalise(scores: Tensor, written: Sequence[Tensor], penalty: float) -> Tensor:
    """`scores` (B, V) with the largest at 10, divided by `penalty` at each token of `written`.

    written: (B,) each. Where that was the largest, the largest of the row is 10 again before the
    next. (As in the authors' code: after this shift the division does not depend on an
    offset of the scores, most of which are positive.)
    """
    scores = scores - scores.amax(dim=-1, keepdim=True) + _HIGHEST
    for tokens in written:
        value = scores.gather(-1, tokens[:, None])
        scores = scores.scatter(-1, tokens[:, None], value / penalty)
        raised = scores - scores.amax(dim=-1, keepdim=True) + _HIGHEST
        scores = torch.where(value == _HIGHEST, raised, scores)
    return scores


def with_code(
    ids: Sequence[int], code: Sequence[int], special: frozenset[int]
) -> tuple[list[int], int]:
    """`ids` with a code word before the text, after the special tokens in front; and its start."""
    lead = next((i for i, token in enumerate(ids) if token not in special), len(ids))
    return [*ids[:lead], *code, *ids[lead:]], lead + len(code)


class _GuidedWriting(Writing):
    """Streams: the model, and the class-conditional one with 2B rows, clean ones first."""

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
        self._written: list[Tensor] = []

    def shift(self, scores: Tensor) -> Tensor:
        logits = fit_width(self._classes.logits.float(), scores.shape[-1])
        self._next = logits.log_softmax(dim=-1) + self._likelihood[:, None]
        if self._options.omega == 0:
            return scores
        clean, dirty = self._next.chunk(2)
        options = self._options
        # The likelihoods are normalised by length and scaled; both classes are as likely.
        guided = guide(scores, self._scale * (clean - dirty) / (self._counts[:, None] + 1), options)
        if options.repetition_penalty == 1:
            return guided
        return penalise(guided, self._written, options.repetition_penalty**options.onset)

    def advance(self, tokens: Tensor) -> None:
        super().advance(tokens)
        self._written.append(tokens)
        self._likelihood = self._next.gather(-1, tokens.repeat(2)[:, None])[:, 0]
        self._counts = self._counts + 1
        self._classes.advance(tokens.repeat(2))


class Gedi(DecodingBaseline):
    """Guides each token by the probability that it makes the text a clean one."""

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
        # The class model reads the prompt twice: once for its likelihood, once into its cache.
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
        """Updates that condition the task's model on "clean" or "dirty", and the scale.

        Loss: 0.8 generative (the text after its own code word) and 0.2 discriminative (which code
        word it is likelier after). Figure: AUC of the discrimination on held-out texts.
        """
        texts, held_out = task.texts()
        codes = _codes(task.tokenizer)
        special = frozenset(task.tokenizer.all_special_ids)
        # Room for the code in the context.
        most = (context_length(task.model.config) or 2**31) - max(map(len, codes))
        ids = [row[:most] for row in task.tokenize([text.text for text in texts])]
        dirty = torch.tensor([text.toxicity >= TOXIC for text in texts], device=task.model.device)
        tuning = Tuning(task.model, task.settings)
        log_scale = nn.Parameter(torch.zeros((), device=task.model.device))

        def class_losses(rows: Sequence[Sequence[int]]) -> Tensor:
            """Mean -log p per token after either code word, (B, 2)."""
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
    """Sum of -log p of each row's tokens from its start on, (B,)."""
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
