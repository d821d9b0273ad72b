"""The strategy `backtrack` and its options; `runtime/rewind.py` does its work."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tide.core.errors import matching
from tide.plugins.options import Options

_Pace = Annotated[
    str,
    matching(r"auto|word|sentence|whole|[1-9]\d{0,3}", "auto, word, sentence, whole or 1 to 9999"),
]


class BacktrackOptions(Options):
    pace: _Pace = Field(
        default="auto",
        description="When to score a growing text: after each word, each sentence, every N "
        "tokens, or whole (once, at the end); auto: as the scorer suggests.",
    )
    blame: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Blame the word at which the score reaches this share of the threshold.",
    )
    lag: int = Field(
        default=4,
        ge=0,
        le=100,
        description="Scores to await after a failing one, up to the next sentence's end, since a "
        "later one may pass; 0: none.",
    )
    at_once: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Rewind at once if the score, or an attribute at its limit, reaches this.",
    )
    holds: int = Field(
        default=12, ge=1, le=100, description="Maximum number of banned words in 32 tokens."
    )
    least: int = Field(
        default=5, ge=0, le=1000, description="Minimum number of tokens of a repaired text."
    )


class Backtrack:
    """Score the text while it is written; ban the word that makes it fail, and rewind to before it.

    Related: token-wise rejection sampling with backtracking (Botta et al. 2025, arXiv 2502.12123),
    RAIN (Li et al. 2023, arXiv 2309.07124), CARE (arXiv 2509.06982), Qwen3Guard-Stream, banned
    phrases in exllamav2, and word filters (Gehman et al. 2020).
    """

    options_class: ClassVar[type[Options]] = BacktrackOptions
    moves: ClassVar[bool] = False
    rewinds: ClassVar[bool] = True
