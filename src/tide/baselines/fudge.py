"""`fudge`: Yang and Klein 2021, "FUDGE: Controlled Text Generation With Future Discriminators".

NAACL 2021, arXiv:2104.05218. A classifier that has seen every prefix of labelled texts says how
likely a text that begins so is to become a non-toxic one. The likeliest tokens gain the log of that
(log P(x | past) + weight log P(non-toxic | past, x): Bayes' rule at weight 1); others are not
drawn. As in the authors' code (yangkevin2/naacl-2021-fudge-controlled-generation, `formality`): 200
candidates, cross-entropy at every position alike. Their classifier is an LSTM; this one is a copy
of the model with a linear head, as in `rad`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from tide.baselines.base import Candidates, Options, Order, Strength
from tide.baselines.common.fit import TOXIC, FitTask, Fitted
from tide.baselines.common.training import auc, span, weak_auc
from tide.baselines.rad import Rad, fit_head


class FudgeOptions(Options):
    strength = "weight"

    weight: Strength = Field(default=1.0, description="Weight of log P(non-toxic).")
    candidates: Candidates = Field(default=200, description="Most likely tokens that are tried.")
    order: Order = "shift-warp"


def prefix_loss(logits: Tensor, labels: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Mean cross-entropy at every position of a text from its start on; a scalar.

    logits: (B, T), of P(non-toxic). labels: (B,), in [0, 1], 1 = non-toxic. starts, lengths: (B,).
    """
    seen = span(starts, lengths, logits.shape[1])
    labels = labels[:, None].expand_as(logits)
    return binary_cross_entropy_with_logits(logits[seen], labels[seen])


class Fudge(Rad):
    """The likeliest candidates gain the log-probability that the text becomes a non-toxic one."""

    kind = "fudge"
    options_class = FudgeOptions  # type: ignore[assignment]
    _options: FudgeOptions  # type: ignore[assignment]

    def gains(self, found: Tensor, scores: Tensor) -> Tensor:
        return self._options.weight * logsigmoid(found)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Updates of the task's model and a linear head in place of its own.

        Figure: AUC of the prediction at the end of held-out texts.
        """
        texts, held_out = task.texts()
        clean = [float(text.toxicity < TOXIC) for text in texts]
        tensors, logits = fit_classifier(
            task,
            task.tokenize([text.text for text in texts]),
            clean,
            [0] * len(texts),
            task.tokenize([text.text for text in held_out]),
        )
        figure = auc([text.toxicity < TOXIC for text in held_out], logits)
        return Fitted(tensors, {"auc": figure}, weak_auc("classifier", figure))


def fit_classifier(
    task: FitTask,
    ids: Sequence[Sequence[int]],
    labels: Sequence[float],
    starts: Sequence[int],
    measured: Sequence[Sequence[int]],
) -> tuple[dict[str, Tensor], list[float]]:
    """The task's model trained by `prefix_loss`, and its logit at the end of `measured` texts.

    ids: texts with these labels, each learned from its start.
    """
    device = task.model.device
    goal, begin = torch.tensor(labels, device=device), torch.tensor(starts, device=device)

    def loss(logits: Tensor, numbers: list[int], lengths: Tensor) -> Tensor:
        return prefix_loss(logits, goal[numbers], begin[numbers], lengths)

    return fit_head(task, ids, loss, measured, "classifier", begin=0)
