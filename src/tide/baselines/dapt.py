"""`dapt`: domain-adaptive pretraining, Gururangan et al. 2020 (ACL 2020, arXiv:2004.10964).

The model trained on with non-toxic text, as Gehman et al. 2020 (RealToxicityPrompts) use it; the
text is written by the trained model alone.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from tide.baselines.base import Options
from tide.baselines.common.auxiliary import ready
from tide.baselines.common.decoding import DecodingBaseline, Reader
from tide.baselines.common.fitting import FitTask, Fitted, fine_tune
from tide.baselines.common.labelled import TOXIC
from tide.baselines.common.settings import Strength
from tide.engines.local.decode import Writing


class DaptOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the learned update.")


class Dapt(DecodingBaseline):
    """The model with `scale` times the low-rank update that was learned on non-toxic text."""

    kind = "dapt"
    options_class = DaptOptions
    learned = True
    _options: DaptOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        return Writing(self._reader.read(ids, tokens), [len(row) for row in ids])

    @cached_property
    def _reader(self) -> Reader:
        return Reader(ready(self.fitted_model(strength=self._options.scale)))

    @staticmethod
    def fit(task: FitTask) -> Fitted:
        """LoRA updates of the model on non-toxic text; figures: perplexity before and after."""
        train, held_out = (
            [text.text for text in rows if text.toxicity < TOXIC] for rows in task.texts()
        )
        return fine_tune(task, train, held_out, "dapt")
