"""Systems with a classifier of prefixes: `fudge` and `critic-control`.

`fudge`: Yang and Klein 2021, "FUDGE: Controlled Text Generation With Future Discriminators" (NAACL
2021, arXiv:2104.05218). A classifier, trained on every prefix of labelled texts, predicts how
likely a text with this prefix is to become non-toxic. The log of this probability is added to the
scores of the likeliest tokens; other tokens are not drawn. At weight 1 this is Bayes' rule:
log P(x | past) + log P(non-toxic | past, x). The 200 candidates and the equal weight of all
positions in the loss are those of the authors' code (`formality` in
yangkevin2/naacl-2021-fudge-controlled-generation). The authors' classifier is an LSTM; here it is a
copy of the model with a linear head, as in `rad`.

`critic-control`: Kim et al. 2023, "Critic-Guided Decoding for Controlled Text Generation" (ACL
Findings 2023, arXiv:2212.10938). Like `fudge`, but the classifier is a critic: it learns the
outcome of a prefix from the model's own continuations and their scores. log sigmoid(Q) is added to
the candidates' scores; the authors' division by V(prefix) would not change their differences. The
authors (minbeomkim/CriticControl) train a linear head on the frozen model with the value loss of
PPO (lambda 0.95, gamma 0.99) and also draw tokens outside of the 10 candidates. Here the critic is
a tuned copy of the model that learns the outcome itself (lambda 1, gamma 1), and only candidates
are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from tide.baselines.base import Candidates, Options, Strength
from tide.baselines.fit import TOXIC, FitTask, Fitted
from tide.baselines.rad import Rad, fit_head
from tide.baselines.rollouts import beginnings, held_out, judged, roll_out
from tide.baselines.training import classified, span


class FudgeOptions(Options):
    strength = "weight"

    weight: Strength = Field(default=1.0, description="Weight of log P(non-toxic).")
    candidates: Candidates = Field(default=200, description="Number of likeliest tokens to score.")


def prefix_loss(logits: Tensor, labels: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean cross-entropy over all positions of the texts from `starts` on; a scalar.

    logits: (B, T), of P(non-toxic). labels: (B,), in [0, 1], 1 = non-toxic. starts, lengths: (B,).
    """
    seen = span(starts, lengths, logits.shape[1])
    labels = labels[:, None].expand_as(logits)
    return binary_cross_entropy_with_logits(logits[seen], labels[seen])


class Fudge(Rad):
    """Adds the log-probability of a non-toxic text to the score of each of the likeliest tokens."""

    kind = "fudge"
    options_class = FudgeOptions  # type: ignore[assignment]
    _options: FudgeOptions  # type: ignore[assignment]

    def gains(self, outputs: Tensor, scores: Tensor) -> Tensor:
        return self._options.weight * logsigmoid(outputs)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the task's model, and a linear head instead of its output layer.

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
        return classified(tensors, held_out, logits, toxic=False)


def fit_classifier(
    task: FitTask,
    ids: Sequence[Sequence[int]],
    labels: Sequence[float],
    starts: Sequence[int],
    measured: Sequence[Sequence[int]],
) -> tuple[dict[str, Tensor], list[float]]:
    """Train the task's model by `prefix_loss`; return the result of `fit_head`.

    ids, labels: token ids and labels of the training texts. starts: for each text, the first
    position that counts in the loss.
    """
    device = task.model.device
    goal, begin = torch.tensor(labels, device=device), torch.tensor(starts, device=device)

    def loss(logits: Tensor, numbers: list[int], lengths: Tensor) -> Tensor:
        return prefix_loss(logits, goal[numbers], begin[numbers], lengths)

    return fit_head(task, ids, loss, measured, "classifier", begin=0)


class CriticControlOptions(FudgeOptions):
    candidates: Candidates = Field(default=10, description="Number of likeliest tokens to score.")


class CriticControl(Fudge):
    """Adds the critic's log-probability of a non-toxic outcome to each of the likeliest tokens."""

    kind = "critic-control"
    options_class = CriticControlOptions
    # A smaller model would learn from its own texts instead of the model's texts.
    auxiliary = False
    scored = True

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the task's model and a linear head on texts that the model writes.

        Figures on a held-out tenth: the share of toxic texts, and AUC of the critic at the end of
        each text.
        """
        rollouts = roll_out(task, beginnings(task))
        learned, measured = held_out(rollouts)
        tensors, logits = fit_classifier(
            task,
            [rollout.ids for rollout in learned],
            [1 - rollout.toxicity for rollout in learned],
            [len(rollout.prompt) - 1 for rollout in learned],
            [rollout.ids for rollout in measured],
        )
        return judged(tensors, measured, [-logit for logit in logits])
