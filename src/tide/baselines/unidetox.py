"""`unidetox`: Lu et al. 2025, "UniDetox: Universal Detoxification of Large Language Models via
Dataset Distillation" (ICLR 2025).

From a single begin-of-text token, the model writes texts by contrastive decoding against a copy of
itself that was tuned on toxic text; then it is trained on these texts. As in the authors' code
(EminLU/UniDetox), tokens are drawn by p / p_toxic from the 50 likeliest tokens (the default of
`generate`) that have at least a tenth of the highest probability. The authors' model writes 640
texts of up to 256 tokens; here a text has up to `max_tokens` tokens.
"""

from __future__ import annotations

import copy
from functools import partial

from tide.baselines.common.artefacts import merge_updates
from tide.baselines.common.fit import FitTask, Fitted, of_kind
from tide.baselines.common.lanes import MixedLane, Reader
from tide.baselines.common.rollouts import write
from tide.baselines.common.training import fine_tune, perplexities, write_like
from tide.baselines.contrastive import ContrastiveOptions, contrast
from tide.baselines.dapt import Dapt
from tide.core.settings import Sampling
from tide.engines.checkpoint import context_length

_TEXTS, _TOP_K = 640, 50


class Unidetox(Dapt):
    """Adds `scale` times an update that was learned from the model's own distilled text."""

    kind = "unidetox"
    learned = True
    part = reads = ""

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """Train updates of the model on texts that it writes against a copy tuned on toxic text.

        Figures: perplexity of held-out toxic and non-toxic texts, before and after.
        """
        _, held_out = task.texts()
        kinds = (("toxic", True), ("other", False))
        measured = {f"{name} perplexity": of_kind(held_out, toxic=toxic) for name, toxic in kinds}
        before = perplexities(task, task.model, measured)
        toxic = merge_updates(copy.deepcopy(task.model), write_like(task, toxic=True).tensors)
        distilled = _distilled(task, Reader(toxic))
        tuning = fine_tune(task, distilled, "distilled text")
        after = perplexities(task, tuning.model, measured)
        figures = {f"{name} before": figure for name, figure in before.items()} | after
        return Fitted(tuning.tensors(), figures)


def _distilled(task: FitTask, amateur: Reader) -> list[list[int]]:
    """Write texts against `amateur`; returns token ids, including the first token of each text."""
    tokenizer, settings = task.tokenizer, task.settings
    first = next(
        token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if token is not None
    )
    longest = min(settings.max_tokens, context_length(task.model.config) or 2**31)
    sampling = Sampling(temperature=1.0, top_k=_TOP_K, max_new_tokens=longest - 1)
    options = ContrastiveOptions()
    lanes = partial(
        MixedLane,
        readers=[amateur],
        combined=lambda scores, _, toxic: contrast(scores, toxic, options),
    )
    prompts = [[first]] * min(_TEXTS, settings.steps * settings.batch_size)
    written = write(task, prompts, sampling, Reader(task.model), lanes)
    return [[first, *ids] for ids in written]
