"""`gedi`: Krause et al. 2021, "GeDi: Generative Discriminator Guided Sequence Generation".

EMNLP Findings 2021, arXiv:2009.06367. By Bayes' rule, a language model conditioned on "clean" or
"dirty" gives the probability that the text is clean after each next token. omega times the log of
this probability is added to the scores, and the least clean tokens are dropped. Where the paper
leaves a choice, this code follows the authors' code (salesforce/GeDi, `modeling_utils.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tide.baselines.artefacts import fit_width
from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import TOXIC, FitTask, Fitted
from tide.baselines.lanes import SteeredLane
from tide.baselines.training import Tuning, classified, logits_of, read, span, token_losses, train
from tide.engines.checkpoint import context_length
from tide.engines.local.batch import Row

CODES = ("clean", "dirty")
# Prior log odds that a text is clean. The least clean tokens of a total probability of `_FILTER_P`
# are dropped, except tokens whose P(clean) is at least `_TARGET_P`.
_CLASS_BIAS, _FILTER_P, _TARGET_P = 2.0, 0.8, 0.8
# Share of the generative loss in training; the rest is for the discriminative loss.
_GENERATIVE = 0.8
# Learning rate of the scale of the class logits. It is high because this number changes much.
_SCALE_RATE = 0.02
_MOST_TOKENS = 2048  # maximum tokens whose logits are in memory at once, outside of training


class GediOptions(Options):
    omega: Strength = Field(default=30.0, description="Weight of log P(clean); 0 turns GeDi off.")


def guide(scores: Tensor, odds: Tensor, omega: float) -> Tensor:
    """Return log p + omega log P(clean), (B, V), with -inf for dropped tokens.

    odds: log odds that the text is clean, to which the class bias is added. The least clean tokens
    are dropped while the sum of their guided probabilities is below 0.8; tokens with
    P(clean) >= 0.8 (without the bias) are kept.
    """
    posterior = nn.functional.logsigmoid(odds + _CLASS_BIAS)
    guided = scores.log_softmax(dim=-1) + omega * posterior
    ordered, order = nn.functional.logsigmoid(odds).sort(dim=-1)
    mass = guided.softmax(dim=-1).gather(-1, order).cumsum(dim=-1)
    # Below omega 1 the filter sets in gradually.
    filtered = mass < _FILTER_P * min(1.0, omega)
    dropped = filtered & (ordered < math.log(_TARGET_P))
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


class GediLane(SteeredLane):
    """The class-conditional model reads the text after "clean" and after "dirty".

    likelihood: log-likelihoods of each row's text after the code words, (B, 2).
    """

    baseline: Gedi

    def clear(self) -> None:
        super().clear()
        device = self._stop_ids.device
        self._likelihood = torch.empty(0, 2, device=device)
        self._counts = torch.empty(0, 1, device=device)  # number of tokens of each text
        self._next = torch.empty(0)

    def enter(self, rows: Sequence[Row]) -> None:
        coded = [text for row in rows for text in self.baseline.coded(row)]
        losses = _text_losses(self.companions[0].reader.model, coded)
        super().enter(rows)
        self._likelihood = torch.cat([self._likelihood, -losses.float().view(-1, 2)])
        counts = [[float(len(ids) - start)] for ids, start in coded[::2]]
        self._counts = torch.cat([self._counts, torch.tensor(counts, device=losses.device)])
        # The class model reads the prompt twice: for the prompt's likelihood and for the cache.
        for number, (ids, _) in enumerate(coded):
            rows[number // 2].read += len(ids)

    def shift(self, scores: Tensor) -> Tensor:
        logits = fit_width(self.companions[0].stream.logits.float(), scores.shape[-1])
        log_p = logits.log_softmax(dim=-1).view(len(scores), 2, -1)
        self._next = log_p + self._likelihood[..., None]
        omega = self.baseline.options.omega
        if omega == 0:
            return scores
        clean, dirty = self._next.unbind(dim=1)
        # The likelihoods are normalised by length and scaled; `guide` adds the class bias.
        scale = self.baseline.artefact.tensors["scale"]
        return guide(scores, scale * (clean - dirty) / (self._counts + 1), omega)

    def draw(self) -> tuple[Tensor, Tensor]:
        tokens, finite = super().draw()
        drawn = tokens[:, None, None].expand(-1, 2, 1)
        self._likelihood = self._next.gather(-1, drawn)[..., 0]
        self._counts = self._counts + 1
        return tokens, finite

    def leave(self) -> list[int]:
        order = super().leave()
        self._likelihood, self._counts = self._likelihood[order], self._counts[order]
        return order


class Gedi(DecodingBaseline):
    """Guides each token by the probability that the text is clean after it."""

    kind = "gedi"
    options_class = GediOptions
    auxiliary = True
    fan_out = 2
    options: GediOptions

    def lanes(self) -> MakeLane:
        reader = self.fitted_reader(
            "lora", copies=2, prompts=lambda row: [ids for ids, _ in self.coded(row)]
        )
        return partial(GediLane, readers=[reader])

    def coded(self, row: Row) -> list[tuple[list[int], int]]:
        """Return the row's prompt after each code word, and the positions where the texts begin."""
        codes, special = self._codes
        return [with_code(row.prompt_ids, code, special) for code in codes]

    @cached_property
    def _codes(self) -> tuple[list[list[int]], frozenset[int]]:
        tokenizer = self.engine.tokenizer
        return _codes(tokenizer), frozenset(tokenizer.all_special_ids)

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
        longest = (context_length(task.model.config) or 2**31) - max(map(len, codes))
        ids = [row[:longest] for row in task.tokenize([text.text for text in texts])]
        dirty = torch.tensor([text.toxicity >= TOXIC for text in texts], device=task.model.device)
        tuning = Tuning(task.model, task.settings)
        log_scale = nn.Parameter(torch.zeros((), device=task.model.device))

        def class_losses(rows: Sequence[Sequence[int]]) -> Tensor:
            """Return the mean -log p per token after each code word, (B, 2)."""
            coded = [with_code(row, code, special) for code in codes for row in rows]
            losses = _text_losses(tuning.model, coded)
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
        measured = [row[:longest] for row in task.tokenize([text.text for text in held_out])]

        def margins(rows: list[Sequence[int]]) -> Tensor:
            clean, toxic = class_losses(rows).unbind(dim=-1)
            return clean - toxic

        tensors = tuning.tensors("lora.") | {"scale": log_scale.detach().exp()}
        return classified(tensors, held_out, read(margins, measured).tolist())


def _codes(tokenizer: Any) -> list[list[int]]:
    return [tokenizer.encode(word, add_special_tokens=False) for word in CODES]


def _text_losses(model: Any, coded: Sequence[tuple[list[int], int]]) -> Tensor:
    """Return the sum of -log p over the tokens of each text, (B,). coded: see `with_code`."""
    size = max(1, _MOST_TOKENS // max(len(row) for row, _ in coded))
    if len(coded) > size and not torch.is_grad_enabled():
        parts = range(0, len(coded), size)
        return torch.cat([_text_losses(model, coded[i : i + size]) for i in parts])
    logits, padded, lengths = logits_of(model, [row for row, _ in coded])
    losses = token_losses(logits, padded)
    starts = torch.tensor([start for _, start in coded], device=losses.device)
    return (losses * span(starts - 1, lengths - 1, losses.shape[1])).sum(dim=-1)
