"""`vocabulary-shift`: Gehman et al. 2020, "RealToxicityPrompts" (EMNLP Findings 2020), section 5.

arXiv:2009.11462, after Affect-LM (Ghosh et al. 2017, arXiv:1704.06851). For every token of the
vocabulary two numbers are learned: how much likelier the token is in non-toxic and in toxic text
than the model predicts. beta times the number for non-toxic text is added to the logit. As in the
authors' code (allenai/real-toxicity-prompts, `models/affect_lm.py`), special tokens are not
shifted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.decoding import DecodingBaseline, Writing
from tide.baselines.common.fit import TOXIC, FitTask, Fitted
from tide.baselines.common.training import (
    LEAST_AUC,
    auc,
    before_end,
    read,
    right_pad,
    token_losses,
    train,
    weak_auc,
)

# Only the few texts with a token train the token's number, so the learning rate is high.
_RATE = 0.05


class VocabularyShiftOptions(Options):
    strength = "beta"

    beta: Strength = Field(default=3.0, description="Weight of the learned shift.")
    order: Order = "shift-warp"


class VocabularyShift(DecodingBaseline):
    """Adds to every token's logit how much likelier the token is in non-toxic text."""

    kind = "vocabulary-shift"
    options_class = VocabularyShiftOptions
    learned = True
    _options: VocabularyShiftOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        width = self.engine.model.get_output_embeddings().weight.shape[0]
        # The first row: how much likelier each token is in non-toxic text.
        weight = self.artefact.tensor("weight", 2, width)[0]
        gains = self._options.beta * weight.float().to(self.engine.device)
        return self.mixed([], ids, tokens, lambda scores, _: scores + gains)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Learn the logit shifts of non-toxic and of toxic text: weight (2, V).

        Maximises the likelihood of each text with the shifts of its kind; the model is unchanged.
        Figure: AUC of the difference between a text's likelihoods under the two kinds.
        """
        texts, held_out = task.texts()
        ids = task.tokenize([text.text for text in texts])
        kinds = torch.tensor([text.toxicity >= TOXIC for text in texts], device=task.model.device)
        width = task.model.get_output_embeddings().weight.shape[0]
        # Special tokens are not shifted.
        shifted = torch.ones(width, device=task.model.device)
        shifted[[token for token in task.tokenizer.all_special_ids if token < width]] = 0
        weight = nn.Parameter(torch.zeros(2, width, device=task.model.device))

        def losses(rows: Sequence[Sequence[int]], gains: Tensor) -> tuple[Tensor, Tensor]:
            """Return -log p of tokens from the second on and their mask; gains: (B or 1, V)."""
            padded, lengths = right_pad(rows, task.model.device)
            with torch.no_grad():
                logits = task.model(input_ids=padded, use_cache=False).logits.float()
            found = token_losses(logits + (gains * shifted)[:, None], padded)
            return found, before_end(lengths - 1, found.shape[1])

        def loss(numbers: list[int]) -> Tensor:
            found, seen = losses([ids[i] for i in numbers], weight[kinds[numbers].long()])
            return found[seen].mean()

        groups = [{"params": [weight], "lr": _RATE, "weight_decay": 0.0}]
        train(groups, loss, [len(row) for row in ids], task, "vocabulary")

        @torch.no_grad()
        def toxic_by(rows: list[Sequence[int]]) -> list[float]:
            (clean, seen), (toxic, _) = (losses(rows, weight[kind : kind + 1]) for kind in (0, 1))
            return list(((clean - toxic) * seen).sum(dim=-1).tolist())

        scores = read(toxic_by, task.tokenize([text.text for text in held_out]))
        figure = auc([text.toxicity >= TOXIC for text in held_out], scores)
        doubts = weak_auc("vocabulary", figure, LEAST_AUC)
        return Fitted({"weight": (weight.detach() * shifted).half()}, {"auc": figure}, doubts)
