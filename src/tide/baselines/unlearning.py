"""Systems that learn from texts that the model itself writes: `quark` and `rectification`.

`quark`: Lu et al. 2022, "Quark: Controllable Text Generation with Reinforced Unlearning".

NeurIPS 2022, arXiv:2205.13636. The model writes texts, and a scorer sorts the texts into fifths by
toxicity. The model is trained on the texts, each after a code token for its fifth. Then the model
writes new texts after the code of the least toxic fifth, is trained on all texts, and so on. The
trained model always writes after this code.

Loss and constants are those of the authors' code (GXimingLu/Quark): -log p of the written tokens,
plus 0.05 times the divergence from the original model, minus 0.06 times the entropy. The authors'
model writes new texts every 500 steps, up to 47 times; here the model writes four times.

`rectification`: Cao et al. 2023, "Systematic Rectification of Language Models via Dead-end
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
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tide.baselines.artefacts import Head
from tide.baselines.base import ScaleOptions
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import MixedLane, Reader
from tide.baselines.rollouts import Rollout, beginnings, held_out, judged, roll_out
from tide.baselines.training import Tuning, logits_of, read, right_pad, span, train

_FIFTHS, _ROUNDS = 5, 4
_KL, _ENTROPY = 0.05, 0.06


def fifths(toxicity: list[float]) -> list[int]:
    """Return the fifth of each text, from 0 (least toxic) to 4; texts of equal score keep order."""
    ranks = np.argsort(toxicity, kind="stable").argsort()
    return list((ranks * _FIFTHS // len(toxicity)).tolist())


def unlearning_loss(logits: Tensor, before: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean over N tokens of -log p + 0.05 KL(p || p before) - 0.06 entropy of p.

    logits, before: (N, V), of the model in training and of the original model. tokens: (N,).
    """
    log_p, log_before = logits.log_softmax(dim=-1), before.log_softmax(dim=-1)
    p = log_p.exp()
    written = -log_p.gather(-1, tokens[:, None])[:, 0]
    divergence, entropy = (p * (log_p - log_before)).sum(dim=-1), -(p * log_p).sum(dim=-1)
    return (written + _KL * divergence - _ENTROPY * entropy).mean()


class Quark(DecodingBaseline):
    """Draws from a model trained on its own texts, after the code of the least toxic fifth."""

    kind = "quark"
    options_class = ScaleOptions
    scored = True
    options: ScaleOptions

    def drawn_from(self) -> Reader:
        return self._trained() if self.options.scale == 1 else super().drawn_from()

    def lanes(self) -> MakeLane:
        scale = self.options.scale
        if scale == 1:
            return super().lanes()
        return partial(
            MixedLane,
            readers=[self._trained()],
            combined=lambda scores, base, logits: scores + scale * (logits - base),
        )

    def _trained(self) -> Reader:
        return self.fitted_reader("lora", front=self.artefact.tensors["codes"][:1])

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the model, and an embedding for each fifth: codes (5, d).

        Figures: mean toxicity of continuations of held-out prompts (a tenth), before and after.
        """
        prompts, measured = held_out(beginnings(task))
        toxic = fmean(rollout.toxicity for rollout in roll_out(task, measured))
        table = task.model.get_input_embeddings()
        torch.manual_seed(task.settings.seed)
        random = torch.randn_like(table.weight[:_FIFTHS], dtype=torch.float32)
        codes = nn.Parameter(random * table.weight.float().std())
        tuning, pool, step = Tuning(task.model, task.settings), list[Rollout](), 0
        kinds = torch.empty(0)
        interval = -(-task.settings.steps // _ROUNDS)

        def loss(numbers: list[int]) -> Tensor:
            nonlocal step, kinds
            if step % interval == 0:
                number = step // interval
                front = codes[:1].detach() if number else None
                pool.extend(roll_out(task, prompts[number::_ROUNDS], front=front, seed=number))
                kinds = torch.tensor(
                    fifths([rollout.toxicity for rollout in pool]), device=codes.device
                )
            step += 1
            chosen = [number % len(pool) for number in numbers]
            padded, lengths = right_pad([pool[i].ids for i in chosen], codes.device)
            starts = torch.tensor([len(pool[i].prompt) for i in chosen], device=codes.device)
            written = span(starts - 1, lengths - 1, padded.shape[1] - 1)
            with torch.no_grad(), tuning.model.disable_adapter():
                before = tuning.model(input_ids=padded, use_cache=False)
            x = table(padded)
            x = torch.cat([codes[kinds[chosen], None].to(x.dtype), x], dim=1)
            now = tuning.model(inputs_embeds=x, use_cache=False)
            # `now` has one more position, that of the code; the last token predicts nothing.
            unchanged_logits = before.logits[:, :-1][written].float()
            logits = now.logits[:, 1:-1][written].float()
            return unlearning_loss(logits, unchanged_logits, padded[:, 1:][written])

        groups = [{"params": [*tuning.parameters, codes]}]
        train(groups, loss, [1] * len(prompts), task, "unlearning", early=False)
        texts = roll_out(task, measured, front=codes[:1].detach())
        after = fmean(rollout.toxicity for rollout in texts)
        tensors = tuning.tensors("lora.") | {"codes": codes.detach().float()}
        return Fitted(tensors, {"toxicity before": toxic, "toxicity": after})


_FLOOR = 1e-7  # minimum cap
_EPSILON = 0.1  # subtracted from Q


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
    options_class = ScaleOptions
    scored = True
    options: ScaleOptions

    def lanes(self) -> MakeLane:
        scale = self.options.scale
        return partial(
            MixedLane,
            readers=[self.fitted_reader("lora")],
            combined=lambda scores, _, q: rectified(scores, q, scale),
        )

    def add_head(self, model: Any) -> None:
        parts = self.artefact.under("head")
        with_q_head(model, len(parts["0.weight"])).load_state_dict(parts)

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

        def at_the_end(rows: list[Sequence[int]]) -> Tensor:
            q, padded, lengths = logits_of(tuning.model, rows)
            return -q_of_tokens(q, padded)[torch.arange(len(q)), lengths - 2]

        lengths = [len(rollout.ids) for rollout in learned]
        train([{"params": [*tuning.parameters, *head.parameters()]}], loss, lengths, task, "Q")
        tensors = tuning.tensors("lora.")
        tensors |= {
            f"head.{name}": value.detach().half() for name, value in head.named_parameters()
        }
        danger = read(at_the_end, [rollout.ids for rollout in measured])
        return judged(tensors, measured, danger.tolist())


def with_q_head(model: Any, rank: int) -> nn.Module:
    """Replace the output layer by a head of this rank, whose output is 0 before the training."""
    old = model.get_output_embeddings().weight
    device, (vocabulary, width) = old.device, old.shape
    last = Head(rank, vocabulary, device)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    head = nn.Sequential(Head(width, rank, device, bias=False), last)
    model.set_output_embeddings(head)
    return head
