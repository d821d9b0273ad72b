"""Systems that use copies of the model, tuned on non-toxic text (expert) and on toxic text.

`dexperts`: Liu et al. 2021, "DExperts: Decoding-Time Controlled Text Generation with Experts and
Anti-Experts" (ACL 2021, arXiv:2105.03023). The logits are z = top-p(z_base) + alpha (z_expert -
z_anti) (eq. 1). The expert is tuned on non-toxic text, the anti-expert on toxic text.

`dapt`: domain-adaptive pretraining, Gururangan et al. 2020 (ACL 2020, arXiv:2004.10964). The model
is trained further on non-toxic text, as in Gehman et al. 2020 (RealToxicityPrompts), and the
trained model writes alone. Gehman et al. train for three epochs on the least toxic 2 % of a web
corpus. Here the trained model is the expert of `dexperts`, which learns from the non-toxic half of
the labelled texts.

`contrastive`: Li et al. 2023, "Contrastive Decoding" (ACL 2023, arXiv:2210.15097). Prefers tokens
that an expert model finds likelier than an amateur model does, among the tokens that the expert
finds plausible: log p_expert - coefficient log p_amateur. In the paper the amateur is a smaller
model, whose dull text is avoided. Here the expert is the model itself, and the amateur is the
anti-expert of `dexperts`, so toxic text is avoided. As in the authors' code
(XiangLi1999/ContrastiveDecoding), a token is plausible if it has at least a tenth of the likeliest
token's probability, and the amateur has a separate temperature. Their beam search runs at
temperature 1, where the order does not matter. When they sample at temperature T, T divides only
the expert's logits, so their coefficient c is `coefficient=c*T` here.

`unidetox`: Lu et al. 2025, "UniDetox: Universal Detoxification of Large Language Models via Dataset
Distillation" (ICLR 2025). From a single begin-of-text token, the model writes texts by contrastive
decoding against a copy of itself that was tuned on toxic text; then it is trained on these texts.
As in the authors' code (EminLU/UniDetox), tokens are drawn by p / p_toxic from the 50 likeliest
tokens (the default of `generate`) that have at least a tenth of the highest probability. The
authors' model writes 640 texts of up to 256 tokens; here a text has up to `max_tokens` tokens.

`safe-decoding`: Xu et al. 2024, "SafeDecoding: Defending against Jailbreak Attacks via Safety-Aware
Decoding" (ACL 2024, arXiv:2402.08983). The first two tokens are drawn from p + alpha (p_expert -
p), restricted to tokens in the top-k lists of both the model and the expert. k is the smallest
number that gives five such tokens. Later tokens are drawn from the model alone. All numbers are
those of the authors' code (uw-nsl/SafeDecoding). The authors' expert was tuned to refuse; here it
is the expert of `dexperts`. The model's likeliest token is always included, so that alpha 0 is the
model; at the default alpha it is drawn only if the expert finds it likely, too.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from tide.baselines.artefacts import fit_width, merge_updates
from tide.baselines.base import Options, ScaleOptions, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.fit import FitTask, Fitted, of_kind
from tide.baselines.lanes import MixedLane, Reader, SteeredLane
from tide.baselines.rollouts import write
from tide.baselines.training import fine_tune, perplexity, write_like
from tide.core.errors import InputError
from tide.core.settings import Sampling
from tide.engines.checkpoint import context_length
from tide.engines.local.sampler import keep_nucleus

# DExperts: the share of the model's probability whose tokens are kept.
_TOP_P = 0.9
# Contrastive: the minimum probability of a token, as a share of the likeliest token's probability.
_PLAUSIBLE = 0.1
# Safe decoding: number of first tokens that are shifted, minimum number of tokens in both top-k
# lists, and minimum probability.
_FIRST, _COMMON, _FLOOR = 2, 5, 1e-8
# UniDetox: number of distilled texts, and of likeliest tokens that they are drawn from.
_TEXTS, _TOP_K = 640, 50


class DexpertsOptions(Options):
    alpha: Strength = Field(default=2.0, description="Weight of the experts' difference.")


def ensemble(scores: Tensor, base: Tensor, expert: Tensor, anti: Tensor, alpha: float) -> Tensor:
    """Return `scores` + alpha (expert - anti) in the nucleus of `base`, else -inf; all (B, V)."""
    outside = keep_nucleus(base, _TOP_P) == -torch.inf
    return (scores + alpha * (expert - anti)).masked_fill(outside, -torch.inf)


class Dexperts(DecodingBaseline):
    """Shifts the model's logits by the difference of an expert and an anti-expert."""

    kind = "dexperts"
    options_class = DexpertsOptions
    auxiliary = True
    options: DexpertsOptions

    def lanes(self) -> MakeLane:
        readers = [self.fitted_reader(side) for side in ("expert", "anti")]
        combined = partial(ensemble, alpha=self.options.alpha)
        return partial(MixedLane, readers=readers, combined=combined)

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the task's model: `expert` on non-toxic text, `anti` on toxic text.

        Figures: perplexity of held-out text of the same and of the other kind, before and after.
        """
        sides = {"expert": write_like(task, toxic=False), "anti": write_like(task, toxic=True)}
        tensors: dict[str, Tensor] = {}
        figures: dict[str, float] = {}
        for side, fitted in sides.items():
            tensors |= {f"{side}.{name}": tensor for name, tensor in fitted.tensors.items()}
            figures |= {f"{side} {name}": value for name, value in fitted.held_out.items()}
        return Fitted(tensors, figures)


class Dapt(DecodingBaseline):
    """Adds `scale` times an update that was learned from non-toxic text (`tide fit dexperts`)."""

    kind = "dapt"
    options_class = ScaleOptions
    part, reads = "expert", "dexperts"
    options: ScaleOptions

    def drawn_from(self) -> Reader:
        if auxiliary := self.artefact.info.get("auxiliary"):
            problem = f"its artefact was fitted on {auxiliary!r}; fit without --auxiliary"
            raise InputError(f"baseline {self.kind}: {problem}")
        return self.fitted_reader(self.part, self.options.scale)


class ContrastiveOptions(Options):
    coefficient: Strength = Field(default=1.0, description="Weight of the amateur.")


def contrast(scores: Tensor, amateur: Tensor, coefficient: float = 1.0) -> Tensor:
    """Subtract the weighted `amateur` logits from `scores`; implausible tokens get -inf; (B, V)."""
    lowest = scores.amax(dim=-1, keepdim=True) + math.log(_PLAUSIBLE)
    contrasted = scores - coefficient * amateur
    return contrasted.masked_fill(scores < lowest, -torch.inf)


class Contrastive(DecodingBaseline):
    """Subtracts the logits of an amateur that was tuned on toxic text (`tide fit dexperts`)."""

    kind = "contrastive"
    options_class = ContrastiveOptions
    reads = "dexperts"
    options: ContrastiveOptions

    def lanes(self) -> MakeLane:
        coefficient = self.options.coefficient
        return partial(
            MixedLane,
            readers=[self.fitted_reader("anti")],
            combined=lambda scores, _, logits: contrast(scores, logits, coefficient),
        )


class Unidetox(Dapt):
    """Adds `scale` times an update that was learned from the model's own distilled text."""

    kind = "unidetox"
    part = reads = ""

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the model on texts that it writes against a copy tuned on toxic text.

        Figures: perplexity of held-out toxic and non-toxic texts, before and after.
        """
        _, held_out = task.texts()
        kinds = {"toxic": True, "other": False}
        measured = {
            name: task.tokenize(of_kind(held_out, toxic=toxic)) for name, toxic in kinds.items()
        }
        figures = {
            f"{name} perplexity before": perplexity(task.model, ids)
            for name, ids in measured.items()
        }
        toxic = merge_updates(copy.deepcopy(task.model), write_like(task, toxic=True).tensors)
        distilled = _distilled(task, Reader(toxic))
        tuning = fine_tune(task, distilled, "distilled text")
        for name, ids in measured.items():
            figures[f"{name} perplexity"] = perplexity(tuning.model, ids)
        return Fitted(tuning.tensors(), figures)


def _distilled(task: FitTask, amateur: Reader) -> list[list[int]]:
    """Write texts against `amateur`; returns token ids, including the first token of each text."""
    tokenizer, settings = task.tokenizer, task.settings
    first = next(
        token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if token is not None
    )
    longest = min(settings.max_tokens, context_length(task.model.config) or 2**31)
    sampling = Sampling(temperature=1.0, top_k=_TOP_K, max_new_tokens=longest - 1)
    lanes = partial(
        MixedLane,
        readers=[amateur],
        combined=lambda scores, _, toxic: contrast(scores, toxic),
    )
    prompts = [[first]] * min(_TEXTS, settings.steps * settings.batch_size)
    written = write(task, prompts, sampling, Reader(task.model), lanes)
    return [[first, *ids] for ids in written]


class SafeDecodingOptions(Options):
    alpha: Strength = Field(default=3.0, description="Weight of the expert.")


def in_common(scores: Tensor, expert: Tensor) -> Tensor:
    """Mask the tokens in both top-k lists, for the smallest k with five common tokens; (B, V).

    The likeliest token by `scores` is always included. A token is in both lists once k reaches the
    worse of its two ranks.
    """
    ranks = [
        logits.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        for logits in (scores, expert)
    ]
    worse = torch.maximum(*ranks)
    last = worse.sort(dim=-1).values[:, min(_COMMON, worse.shape[-1]) - 1, None]
    return (worse <= last) | (ranks[0] == 0)


def steered(scores: Tensor, expert: Tensor, alpha: float) -> Tensor:
    """Return log max(p + alpha (p_expert - p), 1e-8) where `in_common`, -inf elsewhere; (B, V)."""
    plain, safe = scores.softmax(dim=-1), expert.softmax(dim=-1)
    moved = (plain + alpha * (safe - plain)).clamp(min=_FLOOR).log()
    return moved.masked_fill(~in_common(scores, expert), -torch.inf)


class SafeLane(SteeredLane):
    """The expert reads a row only until it has steered the row's first tokens."""

    baseline: SafeDecoding

    def shift(self, scores: Tensor) -> Tensor:
        expert = self.companions[0]
        if not expert.rows:
            return scores
        early = set(expert.rows)
        numbers = [number for number, row in enumerate(self.rows) if row in early]
        early_scores = scores[numbers]
        safe = fit_width(expert.stream.logits.float(), scores.shape[-1])
        moved = steered(early_scores, safe, self.baseline.options.alpha)
        moved = moved.masked_fill(early_scores == -torch.inf, -torch.inf)
        return scores.index_copy(0, torch.tensor(numbers, device=scores.device), moved)

    def advance(self, tokens: Tensor) -> None:
        expert = self.companions[0]
        expert.keep([row for row in expert.rows if len(row.ids) < _FIRST])
        super().advance(tokens)


class SafeDecoding(DecodingBaseline):
    """Shifts the first tokens to an expert tuned on non-toxic text (`tide fit dexperts`)."""

    kind = "safe-decoding"
    options_class = SafeDecodingOptions
    reads = "dexperts"
    options: SafeDecodingOptions

    def lanes(self) -> MakeLane:
        return partial(SafeLane, readers=[self.fitted_reader("expert")])
