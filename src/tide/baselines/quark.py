"""`quark`: Lu et al. 2022, "Quark: Controllable Text Generation with Reinforced Unlearning".

NeurIPS 2022, arXiv:2205.13636. The model writes texts, and a scorer sorts the texts into fifths by
toxicity. The model is trained on the texts, each after a code token for its fifth. Then the model
writes new texts after the code of the least toxic fifth, is trained on all texts, and so on. The
trained model always writes after this code.

Loss and constants are those of the authors' code (GXimingLu/Quark): -log p of the written tokens,
plus 0.05 times the divergence from the original model, minus 0.06 times the entropy. The authors'
model writes new texts every 500 steps, up to 47 times; here the model writes four times.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean

import torch
from pydantic import Field
from torch import Tensor, nn

from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted
from tide.baselines.lanes import MixedLane, Reader
from tide.baselines.rollouts import Rollout, beginnings, held_out, roll_out
from tide.baselines.training import Tuning, right_pad, span, train

_FIFTHS, _ROUNDS = 5, 4
_KL, _ENTROPY = 0.05, 0.06


class QuarkOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="0 is the original, 1 the trained model.")


def fifths(toxicity: list[float]) -> list[int]:
    """Return the fifth of each text, from 0 (least toxic) to 4; texts of equal score keep order."""
    order = sorted(range(len(toxicity)), key=toxicity.__getitem__)
    numbers = [0] * len(toxicity)
    for rank, number in enumerate(order):
        numbers[number] = rank * _FIFTHS // len(order)
    return numbers


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
    options_class = QuarkOptions
    learned = True
    scored = True
    _options: QuarkOptions

    def drawn_from(self) -> Reader:
        return self._trained() if self._options.scale == 1 else super().drawn_from()

    def lanes(self) -> MakeLane:
        scale = self._options.scale
        if scale == 1:
            return super().lanes()
        return partial(
            MixedLane,
            readers=[self._trained()],
            combined=lambda scores, base, logits: scores + scale * (logits - base),
        )

    def _trained(self) -> Reader:
        width = self.engine.model.get_input_embeddings().weight.shape[1]
        best = self.artefact.tensor("codes", _FIFTHS, width)[:1]
        return self.fitted_reader("lora", front=best)

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
