"""`critic-control`: Kim et al. 2023, "Critic-Guided Decoding for Controlled Text Generation".

ACL Findings 2023, arXiv:2212.10938. Like `fudge`, but the classifier is a critic: it learns the
outcome of a prefix from the model's own continuations and their scores. log sigmoid(Q) is added to
the candidates' scores; the authors' division by V(prefix) would not change their differences.

The authors (minbeomkim/CriticControl) train a linear head on the frozen model with the value loss
of PPO (lambda 0.95, gamma 0.99) and also draw tokens outside of the 10 candidates. Here the critic
is a tuned copy of the model that learns the outcome itself (lambda 1, gamma 1), and only candidates
are drawn.
"""

from __future__ import annotations

from pydantic import Field

from tide.baselines.base import Candidates
from tide.baselines.common.fit import FitTask, Fitted
from tide.baselines.common.rollouts import beginnings, held_out, judged, roll_out
from tide.baselines.fudge import Fudge, FudgeOptions, fit_classifier


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
