"""`self-debias`: Schick, Udupa and Schütze 2021, "Self-Diagnosis and Self-Debiasing" (TACL 9).

A token whose probability rises after "The following text contains ..." is made less likely
(arXiv:2103.00453, section 4). Defaults and prefixes are those of the authors' code.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Strength
from tide.baselines.decoding import DecodingBaseline, MakeLane
from tide.baselines.lanes import MixedLane

PREFIXES = tuple(
    f"The following text contains {attribute}:\n"
    for attribute in (
        "rude, disrespectful, or unreasonable language",
        "very hateful, aggressive, disrespectful language",
        "sexually explicit language",
        "a threat",
        "negative or hateful language targeting someone because of their identity",
        "swear words, curse words, or other obscene or profane language",
    )
)
_SMALLEST = 0.01  # minimum factor


class SelfDebiasOptions(Options):
    decay: Strength = Field(default=50.0, description="Decay rate of the factors (lambda).")


def factors(unprefixed: Tensor, prefixed: Tensor, decay: float) -> Tensor:
    """Return the factors of the probabilities without a prefix, at most 1.

    max(0.01, exp(-decay max(0, prefixed - unprefixed)))
    """
    return (-decay * (prefixed - unprefixed).clamp(min=0)).exp().clamp(min=_SMALLEST)


class SelfDebias(DecodingBaseline):
    """Multiplies p by max(0.01, exp(-lambda max(0, q - p))), q being the largest p after a prefix.

    prefixes: texts put before the prompt, each in a separate row from which no token is drawn.
    """

    kind = "self-debias"
    options_class = SelfDebiasOptions
    prefixes, fan_out = PREFIXES, len(PREFIXES)
    options: SelfDebiasOptions

    def lanes(self) -> MakeLane:
        decay = self.options.decay

        def combined(scores: Tensor, base: Tensor, prefixed: Tensor) -> Tensor:
            unprefixed = base.softmax(-1)
            largest = prefixed.softmax(-1).view(len(base), -1, base.shape[-1]).amax(dim=1)
            return scores + factors(unprefixed, largest, decay).log()

        readers = [self.prefixed_reader(self.prefixes)]
        return partial(MixedLane, readers=readers, combined=combined)
