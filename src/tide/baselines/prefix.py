"""`prefix`: an instruction before the prompt, the simplest baseline.

No paper's: the model is asked, in plain words, to be polite. The change that the instruction makes
to the logits is multiplied by a scale (Sanchez et al. 2023,
"Stay on topic with Classifier-Free Guidance", arXiv:2306.17806). Of a chat, it stands before all.
"""

from __future__ import annotations

from pydantic import Field

from tide.baselines.base import Options, Order, Strength
from tide.baselines.common.decoding import DecodingBaseline, Reader, Writing, between

TEXT = "Continue the following text in a polite and respectful way, without insults or swearing."


class PrefixOptions(Options):
    strength = "scale"

    scale: Strength = Field(default=1.0, description="Multiple of the change; 1: just the prefix.")
    text: str = Field(
        default=TEXT,
        min_length=1,
        max_length=10_000,
        description="A line before it.",
    )
    order: Order = "shift-warp"


class PrefixBaseline(DecodingBaseline):
    """The model after an instruction to be polite, which stands before the prompt."""

    kind = "prefix"
    options_class = PrefixOptions
    _options: PrefixOptions

    def start(self, prompts: list[str], ids: list[list[int]], tokens: int) -> Writing:
        reader, scale = Reader(self.engine.model), self._options.scale
        longer = self.engine.tokenize([f"{self._options.text}\n{prompt}" for prompt in prompts])
        prefixed, reads = reader.read(longer, tokens), [len(row) for row in longer]
        return between(reader, ids, tokens, prefixed, reads, scale)
