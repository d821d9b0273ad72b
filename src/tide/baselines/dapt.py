"""`dapt`: domain-adaptive pretraining, Gururangan et al. 2020 (ACL 2020, arXiv:2004.10964).

The model trained on with non-toxic text, as Gehman et al. 2020 (RealToxicityPrompts) use it; the
text is written by the trained model alone. They take the least toxic 2 % of a web corpus, three
times over; here it is the non-toxic half of the labelled texts: the model is the expert that
`tide fit dexperts` trains.
"""

from __future__ import annotations

from pydantic import Field

from tide.baselines.base import Options, Strength
from tide.baselines.common.decoding import DecodingBaseline, Writing
from tide.core.errors import InputError


class DaptOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the learned update.")


class Dapt(DecodingBaseline):
    """The model with `scale` times the update that was learned on non-toxic text
    (`tide fit dexperts`).
    """

    kind = "dapt"
    options_class = DaptOptions
    part, reads = "expert", "dexperts"
    _options: DaptOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        if other := self.artefact.info.get("auxiliary"):
            raise InputError(
                f"baseline {self.kind}: its artefact was fitted on the smaller model "
                f"{other!r}, and this one writes with the model itself; fit without --auxiliary"
            )
        reader = self.fitted_reader(self.part, self._options.scale)
        return Writing(reader.read(ids, tokens), [len(row) for row in ids])
