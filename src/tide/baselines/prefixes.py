"""Systems with a model that judges every prefix: `rad`, `fudge` and `critic-control`.

`rad`: Deng and Raffel 2023, "Reward-Augmented Decoding" (EMNLP 2023, arXiv:2310.09520).

A small causal LM with a linear head predicts the toxicity of every prefix; beta (1 - toxicity) is
added to the candidates' scores. Because the LM is unidirectional, it reads each candidate after a
cached prefix. The code exists in four versions:

    r-three/RAD (the authors', 2023)               normalize=clamp (order=shift-warp)
    IBM/AISteer360, 2025-09-19 to 2026-03-09       normalize=clamp,order=warp-shift
    IBM/AISteer360, 2026-03-10 to 2026-08-05       normalize=minmax (order=warp-shift)
    IBM/AISteer360 since 2026-08-06                normalize=minmax,order=shift-warp

The first and the last version are custom logits processors, which transformers calls before
temperature and top-p. The other two versions do the warping themselves, before the shift.

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

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from tide.baselines.artefacts import Head
from tide.baselines.base import Candidates, Options, Order, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import TOXIC, FitTask, Fitted
from tide.baselines.lanes import CandidateLane
from tide.baselines.rollouts import beginnings, held_out, judged, roll_out
from tide.baselines.training import Tuning, before_end, classified, logits_of, read, span, train

# The published order of each normalisation.
_ORDERS: dict[str, Order] = {"clamp": "shift-warp", "minmax": "warp-shift"}


class RadOptions(Options):
    beta: Strength = Field(default=50.0, description="Weight of the rewards.")
    candidates: Candidates = Field(default=20, description="Number of likeliest tokens to score.")
    normalize: Literal["minmax", "clamp"] = "minmax"
    order: Order = Field(
        default_factory=lambda chosen: _ORDERS[chosen["normalize"]],
        description="By default shift-warp for clamp, warp-shift for minmax.",
    )


def rewards(toxicity: Tensor, scores: Tensor, normalize: str) -> Tensor:
    """Return 1 - toxicity of candidates (B, K), normalised to [0, 1].

    clamp: the toxicity is cut to [0, 1]. minmax: 0 for the most toxic candidate of a row, 1 for the
    least toxic; 0.5 for all if they are equally toxic; candidates with a score of -inf are ignored.
    """
    if normalize == "clamp":
        return 1 - toxicity.clamp(0, 1)
    dropped = scores == -torch.inf
    low = toxicity.masked_fill(dropped, torch.inf).amin(dim=-1, keepdim=True)
    high = toxicity.masked_fill(dropped, -torch.inf).amax(dim=-1, keepdim=True)
    spread = high - low
    scaled = (toxicity - low) / spread.clamp(min=1e-8)
    return torch.where(spread <= 1e-8, torch.full_like(toxicity, 0.5), 1 - scaled)


def cumulative_error(predicted: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean squared error of all prefixes of a text, weighted by their length.

    predicted: (B, T); labels, lengths: (B,). A text's weights 1, 2, ... are scaled to a sum of 1.
    """
    seen = before_end(lengths, predicted.shape[1])
    weights = torch.arange(1, predicted.shape[1] + 1, device=predicted.device) * seen
    errors = (predicted - labels[:, None]) ** 2
    return ((weights * errors).sum(dim=-1) / weights.sum(dim=-1)).mean()


class Rad(DecodingBaseline):
    """Adds beta times a reward to the scores of the likeliest tokens, and draws one of them."""

    kind = "rad"
    options_class = RadOptions
    auxiliary = True
    options: RadOptions

    def lanes(self) -> MakeLane:
        return partial(CandidateLane, readers=[self.fitted_reader("lora")])

    def add_head(self, model: Any) -> None:
        _with_head(model).load_state_dict(self.artefact.under("head"))

    def gains(self, scores: Tensor, outputs: Tensor) -> Tensor:
        """Return what to add to candidates' scores (B, K), from the head's outputs (B * K, 1)."""
        toxicity = outputs.float().view_as(scores)
        return self.options.beta * rewards(toxicity, scores, self.options.normalize)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the task's model, and a linear head instead of its output layer.

        The labels are the toxicities. Figure: AUC of the prediction at the end of held-out texts
        that are clearly toxic or non-toxic.
        """
        texts, held_out = task.texts(rest=True)
        labels = torch.tensor([text.toxicity for text in texts], device=task.model.device)
        tensors, measured = fit_head(
            task,
            task.tokenize([text.text for text in texts]),
            lambda predicted, rows, lengths: cumulative_error(predicted, labels[rows], lengths),
            task.tokenize([text.text for text in held_out]),
            "reward model",
        )
        return classified(tensors, held_out, measured.tolist())


def _with_head(model: Any, begin: float = 0.5) -> nn.Module:
    """Replace the output layer by a linear head with one output, which initially is `begin`."""
    old = model.get_output_embeddings().weight
    head = Head(old.shape[-1], 1, old.device)
    nn.init.zeros_(head.weight)
    nn.init.constant_(head.bias, begin)
    model.set_output_embeddings(head)
    return head


def fit_head(
    task: FitTask,
    ids: Sequence[Sequence[int]],
    error: Callable[[Tensor, list[int], Tensor], Tensor],
    measured: Sequence[Sequence[int]],
    title: str,
    begin: float = 0.5,
) -> tuple[dict[str, Tensor], Tensor]:
    """Train the task's model with a linear head, whose first prediction is `begin`.

    Returns the updates, and the predictions at the end of the `measured` texts. error: computes the
    loss from predictions (B, T) at every position, the row numbers of the texts in `ids`, and the
    lengths of the texts (B,).
    """
    head = _with_head(task.model, begin)
    tuning = Tuning(task.model, task.settings)
    head.requires_grad_(True)

    def predict(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        logits, _, lengths = logits_of(tuning.model, rows)
        return logits[..., 0].float(), lengths

    def loss(numbers: list[int]) -> Tensor:
        predictions, lengths = predict([ids[i] for i in numbers])
        return error(predictions, numbers, lengths)

    def at_the_end(rows: list[Sequence[int]]) -> Tensor:
        predictions, lengths = predict(rows)
        return predictions[torch.arange(len(predictions)), lengths - 1]

    groups = [{"params": [*tuning.parameters, *head.parameters()]}]
    train(groups, loss, [len(row) for row in ids], task, title)
    parts = {f"head.{name}": value.detach().float() for name, value in head.named_parameters()}
    return tuning.tensors("lora.") | parts, read(at_the_end, measured)


class FudgeOptions(Options):
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
    options: FudgeOptions  # type: ignore[assignment]

    def gains(self, scores: Tensor, outputs: Tensor) -> Tensor:
        return self.options.weight * logsigmoid(outputs.float().view_as(scores))

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
        return classified(tensors, held_out, (-logits).tolist())


def fit_classifier(
    task: FitTask,
    ids: Sequence[Sequence[int]],
    labels: Sequence[float],
    starts: Sequence[int],
    measured: Sequence[Sequence[int]],
) -> tuple[dict[str, Tensor], Tensor]:
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
        return judged(tensors, measured, (-logits).tolist())
