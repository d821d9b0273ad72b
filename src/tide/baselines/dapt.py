"""`dapt`: domain-adaptive pretraining, Gururangan et al. 2020 (ACL 2020, arXiv:2004.10964).

The model is trained further on non-toxic text, as in Gehman et al. 2020 (RealToxicityPrompts), and
the trained model writes alone. Gehman et al. train for three epochs on the least toxic 2 % of a web
corpus. Here the trained model is the expert of `tide fit dexperts`, which learns from the non-toxic
half of the labelled texts.
"""

from __future__ import annotations

from pydantic import Field

from tide.baselines.base import Options, Strength
from tide.baselines.common.decoding import DecodingBaseline
from tide.baselines.common.lanes import Reader
from tide.core.errors import InputError


class DaptOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the learned update.")


class Dapt(DecodingBaseline):
    """Adds `scale` times an update that was learned from non-toxic text (`tide fit dexperts`)."""

    kind = "dapt"
    options_class = DaptOptions
    part, reads = "expert", "dexperts"
    _options: DaptOptions

    def drawn_from(self) -> Reader:
        if auxiliary := self.artefact.info.get("auxiliary"):
            raise InputError(
                f"baseline {self.kind}: its artefact was fitted on the smaller model "
                f"{auxiliary!r}, and this baseline needs an update of the model itself; fit "
                "without --auxiliary"
            )
        return self.fitted_reader(self.part, self._options.scale)
