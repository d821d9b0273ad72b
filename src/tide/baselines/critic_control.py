"""`critic-control`: Kim et al. 2023, "Critic-Guided Decoding for Controlled Text Generation".

ACL Findings 2023, arXiv:2212.10938. As `fudge`, but the classifier is a critic: it learns the
outcome of a beginning, from the model's own continuations and a scorer's verdict on them.
Candidates gain log sigmoid(Q); the V that the authors divide by is the same for all of them.

The authors (minbeomkim/CriticControl) train a linear head on the frozen model with the value loss
of PPO (lambda 0.95, gamma 0.99) and keep tokens beyond the 10 candidates. Here the critic is a
tuned copy of the model that learns the outcome itself (lambda 1, gamma 1), and others are not
drawn.
"""

from __future__ import annotations

from pydantic import Field

from tide.baselines.base import Candidates
from tide.baselines.common.fit import FitTask, Fitted
from tide.baselines.common.rollouts import beginnings, held_out, judged, roll_out
from tide.baselines.fudge import Fudge, FudgeOptions, fit_classifier


class CriticControlOptions(FudgeOptions):
    candidates: Candidates = Field(default=10, description="Most likely tokens that are tried.")


class CriticControl(Fudge):
    """Adds the critic's log-score of the text after each candidate to the likeliest tokens."""

    kind = "critic-control"
    options_class = CriticControlOptions
    # A smaller model would learn from its own texts instead of those of the model.
    auxiliary = False
    scored = True

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Updates of the task's model and a linear head, fitted on the model's own text.

        Figures: the share of toxic texts among those, and AUC of the prediction at their end, on a
        tenth that is held out.
        """
        rollouts = roll_out(task, beginnings(task))
        learned, measured = held_out(rollouts)
        tensors, logits = fit_classifier(
            task,
            [one.ids for one in learned],
            [1 - one.toxicity for one in learned],
            [len(one.prompt) - 1 for one in learned],
            [one.ids for one in measured],
        )
        return judged(tensors, measured, [-logit for logit in logits], "critic")
