"""Repair without moving the prompt: ban the word that the scorer blames, and continue."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar

from pydantic import Field

from tide.core.errors import InputError, MissingDependencyError
from tide.core.settings import Settings
from tide.plugins.options import Options
from tide.plugins.specs import parse_spec


class BacktrackOptions(Options):
    pace: str = Field(
        default="auto",
        pattern=r"^(auto|word|sentence|whole|[1-9]\d{0,3})$",
        description="How often the text is scored while it is written: after each word, sentence "
        "or number of tokens, or whole (once, at its end); auto: the scorer's choice.",
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
        description="Number of scores to await after one that failed, since a later one may pass; "
        "0: rewind at once.",
    )
    at_once: float = Field(
        default=0.5, gt=0, le=1, description="Score from which on a text is rewound at once."
    )
    holds: int = Field(
        default=12, ge=1, le=100, description="Maximum number of banned words in 32 tokens."
    )
    hold: bool = Field(
        default=True, description="Ban blamed words; without it, only rewind and redraw."
    )
    least: int = Field(
        default=5, ge=0, le=1000, description="Minimum number of tokens of a repaired text."
    )
    then: str = Field(
        default="random-walk",
        description="Strategy for texts that bans do not repair, in parentheses if it has options, "
        "or none. Engines without embeddings skip one that moves prompts.",
    )


class BacktrackStrategy:
    """Score the text while it is written; ban the word that makes it fail, and rewind to before it.

    The runtime does this (`tide.runtime.answer`); texts that it cannot repair go to the strategy
    `then`.

    Related: token-wise rejection sampling with backtracking (Botta et al. 2025, arXiv 2502.12123),
    RAIN (Li et al. 2023, arXiv 2309.07124), CARE (arXiv 2509.06982), Qwen3Guard-Stream, banned
    phrases in exllamav2, and word filters (Gehman et al. 2020).
    """

    options_class: ClassVar[type[Options]] = BacktrackOptions
    moves: ClassVar[bool] = False

    @classmethod
    def check(cls, options: BacktrackOptions, settings: Settings) -> None:
        if (then := load_fallback(options.then)) is not None:
            then.check(settings)


@lru_cache(maxsize=64)
def load_fallback(spec: str) -> Any:
    """The strategy of a spec; None for `none`, and for the default if torch is missing.

    Raises InputError for an unregistered one, MissingDependencyError for another without torch.
    """
    from tide.search import REGISTRY, load_strategy  # noqa: PLC0415  (circular import)

    if spec == "none":
        return None
    # Only registered names: a class path in a stranger's preset could run code.
    name, _ = parse_spec(spec, "strategy backtrack: then")
    others = [one for one in REGISTRY.names() if one != "backtrack"]
    if name not in others:
        raise InputError(
            f"strategy backtrack: then: {name!r} is not none or one of {', '.join(others)}"
        )
    try:
        return load_strategy(spec)
    except MissingDependencyError:
        if spec != BacktrackOptions.model_fields["then"].default:
            raise
        return None  # the fallback moves embeddings, which no engine has without torch
