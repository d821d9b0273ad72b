"""`self-debias`: Schick, Udupa and Schütze 2021, "Self-Diagnosis and Self-Debiasing" (TACL 9).

A token whose probability rises after "The following text contains ..." is made less likely
(arXiv:2103.00453, section 4). Defaults and prefixes are those of the authors' code.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.decoding import DecodingBaseline, MixedWriting, Reader, Writing

PREFIXES = tuple(
    f"The following text contains {what}:\n"
    for what in (
        "rude, disrespectful, or unreasonable language",
        "very hateful, aggressive, disrespectful language",
        "sexually explicit language",
        "a threat",
        "negative or hateful language targeting someone because of their identity",
        "swear words, curse words, or other obscene or profane language",
    )
)


class SelfDebiasOptions(Options):
    strength = "decay"

    decay: Strength = Field(default=50.0, description="Decay rate of the factors (lambda).")
    epsilon: float = Field(default=0.01, gt=0, le=1, description="Minimum factor.")
    order: Order = "shift-warp"


def factors(own: Tensor, prefixed: Tensor, decay: float, epsilon: float) -> Tensor:
    """Return the factors of probabilities: max(epsilon, exp(-decay max(0, prefixed - own)))."""
    return (-decay * (prefixed - own).clamp(min=0)).exp().clamp(min=epsilon)


class SelfDebias(DecodingBaseline):
    """Multiplies p by max(eps, exp(-lambda max(0, q - p))), q being the largest p after a prefix.

    prefixes: texts put before the prompt, each in a separate row from which no token is drawn.
    """

    kind = "self-debias"
    options_class = SelfDebiasOptions
    prefixes, fan_out = PREFIXES, len(PREFIXES)
    _options: SelfDebiasOptions

    def config(self) -> dict[str, Any]:
        return {**super().config(), "prefixes": list(self.prefixes)}

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        reader, options = Reader(self.engine.model), self._options
        longer = self.engine.tokenize(
            [prefix + prompt for prefix in self.prefixes for prompt in prompts]
        )
        reads = [len(row) + sum(map(len, longer[i :: len(ids)])) for i, row in enumerate(ids)]

        def combined(scores: Tensor, base: Tensor, prefixed: Tensor) -> Tensor:
            own, most = base.softmax(-1), prefixed.softmax(-1).view(-1, *base.shape).amax(dim=0)
            return scores + factors(own, most, options.decay, options.epsilon).log()

        streams = [reader.read(ids, tokens), reader.read(longer, tokens)]
        return MixedWriting(streams, reads, combined)
