"""`dapt`: domain-adaptive pretraining, Gururangan et al. 2020 (ACL 2020, arXiv:2004.10964).

The model trained on with non-toxic text, as Gehman et al. 2020 (RealToxicityPrompts) use it; the
text is written by the trained model alone. They take the least toxic 2 % of a web corpus, three
times over; here it is the non-toxic half of the labelled texts, with which the expert of `dexperts`
is trained too.
"""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from tide.baselines.base import Options
from tide.baselines.common.auxiliary import ready
from tide.baselines.common.decoding import DecodingBaseline, Reader
from tide.baselines.common.fitting import FitTask, Fitted, write_like
from tide.baselines.common.settings import Strength
from tide.engines.local.decode import Writing


class DaptOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the learned update.")


class Dapt(DecodingBaseline):
    """The model with `scale` times the update that was learned on non-toxic text."""

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
        """Updates of the model on non-toxic text; figures: perplexity of it before and after."""
        return write_like(task, toxic=False)
