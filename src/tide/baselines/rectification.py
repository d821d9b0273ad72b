"""`rectification`: Cao et al. 2023, "Systematic Rectification of Language Models via Dead-end
Analysis" (ICLR 2023, arXiv:2302.14003).

A network Q(text, token), in [-1, 0], predicts for every token of the vocabulary how likely the text
is to become toxic after this token. The token's probability is capped at 1 + Q - epsilon. As in the
authors' code (mcao516/rectification-lm, `SecurityLogitsProcessor`), a cap is at least 1e-7, and the
capping is repeated once, because capped probabilities add up to less than 1.

The authors learn Q by SARSA with a target network, from the most and the least toxic of 25
continuations of each prompt, with the outcome 0 or -1. Without a discount, their Q is the mean
outcome. Here Q learns the score of one continuation per prompt directly. This Q is nearer to 0, so
the same scale has less effect. The authors' head has a hidden layer of twice the model's width;
here the size of the hidden layer is the LoRA rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from tide.baselines.artefacts import ready
from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import MixedLane
from tide.baselines.layers import Head, output_layer
from tide.baselines.rollouts import beginnings, held_out, judged, roll_out
from tide.baselines.training import Tuning, logits_of, read, span, train
from tide.core.errors import InputError, guarded

_FLOOR = 1e-7  # minimum cap
_EPSILON = 0.1  # subtracted from Q


class RectificationOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of Q - 0.1; 1 in the paper.")


def rectified(scores: Tensor, q: Tensor, scale: float) -> Tensor:
    """Cap every probability of `scores` at 1 + scale (q - 0.1); all (B, V)."""
    caps = (1 + scale * (q - _EPSILON)).clamp(_FLOOR, 1).log()
    for _ in range(2):
        scores = torch.minimum(scores, caps + scores.logsumexp(dim=-1, keepdim=True))
    return scores


def q_of_tokens(q: Tensor, ids: Tensor) -> Tensor:
    """Return Q of each token but the first, (B, T - 1), given q (B, T, V) and ids (B, T)."""
    return q[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].float()


def outcome_error(
    q: Tensor, ids: Tensor, toxicity: Tensor, starts: Tensor, lengths: Tensor
) -> Tensor:
    """Return the mean squared difference of Q and -toxicity over texts' tokens from `starts` on.

    q: (B, T, V); ids: (B, T); toxicity, starts, lengths: (B,). Returns a scalar.
    """
    errors = (q_of_tokens(q, ids) + toxicity[:, None]) ** 2
    return errors[span(starts - 1, lengths - 1, errors.shape[1])].mean()


class Rectification(DecodingBaseline):
    """Caps the probability of tokens after which the text is likely to become toxic."""

    kind = "rectification"
    options_class = RectificationOptions
    learned = True
    scored = True
    _options: RectificationOptions

    def lanes(self) -> MakeLane:
        scale = self._options.scale
        return partial(
            MixedLane,
            readers=[self.reader(self._q_model)],
            combined=lambda scores, _, q: rectified(scores, q, scale),
        )

    @cached_property
    def _q_model(self) -> Any:
        model, parts = self.fitted_model("lora"), self.artefact.under("head")
        with guarded(InputError, f"baseline {self.kind}: its artefact does not fit the model"):
            with_q_head(model, len(parts["0.weight"])).load_state_dict(parts)
        return ready(model.requires_grad_(False))

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the task's model and a low-rank head on texts that the model writes.

        Figures on a held-out tenth: the share of toxic texts, and AUC of the last token's Q.
        """
        learned, measured = held_out(roll_out(task, beginnings(task)))
        device = task.model.device
        toxicity = torch.tensor([rollout.toxicity for rollout in learned], device=device)
        starts = torch.tensor([len(rollout.prompt) for rollout in learned], device=device)
        tuning = Tuning(task.model, task.settings)
        head = with_q_head(task.model, task.settings.rank)

        def loss(numbers: list[int]) -> Tensor:
            q, padded, lengths = logits_of(tuning.model, [learned[i].ids for i in numbers])
            return outcome_error(q, padded, toxicity[numbers], starts[numbers], lengths)

        @torch.inference_mode()
        def at_the_end(rows: list[Sequence[int]]) -> list[float]:
            q, padded, lengths = logits_of(tuning.model, rows)
            return list((-q_of_tokens(q, padded)[torch.arange(len(q)), lengths - 2]).tolist())

        lengths = [len(rollout.ids) for rollout in learned]
        train([{"params": [*tuning.parameters, *head.parameters()]}], loss, lengths, task, "Q")
        tensors = tuning.tensors("lora.")
        tensors |= {
            f"head.{name}": value.detach().half() for name, value in head.named_parameters()
        }
        danger = read(at_the_end, [rollout.ids for rollout in measured])
        return judged(tensors, measured, danger)


def with_q_head(model: Any, rank: int) -> nn.Module:
    """Replace the output layer by a head of this rank, whose output is 0 before the training."""
    old: Any = output_layer(model, "Q")
    device, (vocabulary, width) = old.weight.device, old.weight.shape
    last = Head(rank, vocabulary, device)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    head = nn.Sequential(Head(width, rank, device, bias=False), last)
    model.set_output_embeddings(head)
    return head
