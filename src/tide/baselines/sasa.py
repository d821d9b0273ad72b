"""`sasa`: Ko et al. 2025, "Large Language Models Can Become Strong Self-Detoxifiers" (ICLR).

arXiv:2410.03818: self-disciplined autoregressive sampling. A linear classifier of the model's own
last hidden state gives each candidate token a margin, positive on the non-toxic side. The
authors' code in IBM's AISteer360 takes a softmax of the margins over the candidates
(`normalize=softmax`), which makes the shift small if there are many candidates. `normalize=raw` is
the paper's formula. The code also labels a text as toxic if any rater called the text toxic
(`labels=any`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from torch import Tensor

from tide.baselines.base import Candidates, Options, Order, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted, by_any, by_half
from tide.baselines.lanes import CandidateLane, Reader
from tide.baselines.training import hidden_states


class SasaOptions(Options):
    beta: Strength = Field(default=10.0, description="Weight of the margins.")
    candidates: Candidates = Field(default=50, description="Number of likeliest tokens to score.")
    normalize: Literal["raw", "softmax"] = "raw"
    labels: Literal["half", "any"] = "half"
    order: Order = "warp-shift"


def margins(hidden: Tensor, weight: Tensor, midpoint: Tensor) -> Tensor:
    """Return the distances (...,) of `hidden` (..., d) from the boundary, positive if non-toxic."""
    return (hidden - midpoint) @ weight


def shifts(margin: Tensor, scores: Tensor, normalize: str) -> Tensor:
    """Return the shifts of candidates by their `scores` and margins, without beta; all (B, K)."""
    if normalize == "raw":
        return margin
    # Candidates that top-p or top-k has dropped do not count.
    return margin.masked_fill(scores == -torch.inf, -torch.inf).softmax(dim=-1)


class LastHidden:
    """Stores the last hidden states (B, T, d) of the latest forward pass in `noted` as `value`.

    layer: the model's output layer, which reads these states.
    """

    def __init__(self, model: Any) -> None:
        self._body, self.layer = model.base_model, model.get_output_embeddings()
        self.value = torch.empty(0)

    @contextmanager
    def noted(self) -> Iterator[None]:
        def note(module: torch.nn.Module, args: Any, output: Any) -> None:
            self.value = output[0]

        handle = self._body.register_forward_hook(note)
        try:
            yield
        finally:
            handle.remove()


class Sasa(DecodingBaseline):
    """Adds beta times the classifier's margin after each candidate to the candidate's score."""

    kind = "sasa"
    options_class = SasaOptions
    options: SasaOptions

    def drawn_from(self) -> Reader:
        return self.reader(self.engine.model, hooks=self._last_hidden.noted)

    def lanes(self) -> MakeLane:
        return CandidateLane

    def gains(self, scores: Tensor, _: Tensor) -> Tensor:
        """Return values to add to candidates' `scores`, (B, K)."""
        hidden = self._last_hidden.value[:, -1].float()
        margin = margins(hidden, *self._classifier).view_as(scores)
        return self.options.beta * shifts(margin, scores, self.options.normalize)

    @cached_property
    def _last_hidden(self) -> LastHidden:
        return LastHidden(self.engine.model)

    @cached_property
    def _classifier(self) -> tuple[Tensor, Tensor]:
        classifier = self.artefact.under(self.options.labels)
        device = self.engine.device
        return classifier["weight"].to(device), classifier["midpoint"].to(device)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Fit Fisher's linear classifier to the hidden state of each text's last token.

        For one classifier a text is toxic if half of its raters say so, for the other if any rater
        does. weight (d,): pooled covariance^-1 (mu+ - mu-), with Ledoit-Wolf shrinkage, normalised.
        midpoint (d,): (mu+ + mu-) / 2, where + is non-toxic. Figures: AUC of both classifiers.
        """
        tensors: dict[str, Tensor] = {}
        figures: dict[str, float] = {}
        for labels, kind, name in (("half", by_half, "auc"), ("any", by_any, "auc of any")):
            train, held_out = task.texts(kind)
            clean, measured = (
                np.array([not kind(text.toxicity) for text in rows]) for rows in (train, held_out)
            )
            hidden = hidden_states(task, [text.text for text in train], _at_the_end).numpy()
            fisher = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(hidden, clean)
            weight = torch.from_numpy(fisher.coef_[0])
            weight = (weight / weight.norm()).float()
            midpoint = torch.from_numpy(fisher.means_.mean(axis=0)).float()
            seen = hidden_states(task, [text.text for text in held_out], _at_the_end).float()
            tensors |= {f"{labels}.weight": weight, f"{labels}.midpoint": midpoint}
            figures[name] = roc_auc_score(measured, margins(seen, weight, midpoint).tolist())
        return Fitted(tensors, figures)


def _at_the_end(hidden: Tensor, lengths: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden)), lengths - 1].double()
