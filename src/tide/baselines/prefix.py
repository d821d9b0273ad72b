"""`prefix`: an instruction before the prompt, the simplest baseline.

The instruction, which is not from a paper, asks the model to be polite. The change of the logits by
the instruction is multiplied by a scale (Sanchez et al. 2023, "Stay on topic with Classifier-Free
Guidance", arXiv:2306.17806). In a chat the instruction is put before the first role marker.
"""

from __future__ import annotations

from pydantic import Field

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.decoding import DecodingBaseline, Reader, Writing, between

TEXT = "Continue the following text in a polite and respectful way, without insults or swearing."


class PrefixOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the instruction's effect.")
    text: str = Field(
        default=TEXT,
        min_length=1,
        max_length=10_000,
        description="The instruction, put on a line before the prompt.",
    )
    order: Order = "shift-warp"


class PrefixBaseline(DecodingBaseline):
    """Puts an instruction to be polite before the prompt."""

    kind = "prefix"
    options_class = PrefixOptions
    _options: PrefixOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        reader, scale = Reader(self.engine.model), self._options.scale
        longer = self.engine.tokenize([f"{self._options.text}\n{prompt}" for prompt in prompts])
        prefixed, reads = reader.read(longer, tokens), [len(row) for row in longer]
        return between(reader, ids, tokens, prefixed, reads, scale)
