"""Repairs a text without moving the prompt, by banning the word that made its score rise."""

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
        description="How often to score a text while it is written: after each word, each "
        "sentence, every N tokens, or whole (once, at the end); auto: as the scorer suggests.",
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
        description="Number of scores to await after a failing score, because a later score may "
        "pass; 0: rewind at once.",
    )
    at_once: float = Field(
        default=0.5, gt=0, le=1, description="Rewind at once if the score is at least this."
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
        description="Strategy for texts that bans do not repair, or none; write a strategy with "
        "options in parentheses. Engines without embeddings skip a strategy that moves prompts.",
    )


class BacktrackStrategy:
    """Score the text while it is written; ban the word that makes it fail, and rewind to before it.

    `tide.runtime.answer` implements this. Texts that bans do not repair go to the strategy `then`.

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
    """Load the strategy of a spec. Returns None for `none`, or for the default spec without torch.

    Raises InputError for an unregistered strategy, and MissingDependencyError if torch is missing
    and the spec is not the default.
    """
    from tide.search import REGISTRY, load_strategy  # noqa: PLC0415  (circular import)

    if spec == "none":
        return None
    # Only registered names are accepted: a class path in an untrusted preset could run code.
    name, _ = parse_spec(spec, "strategy backtrack: then")
    others = [one for one in REGISTRY.names() if one != "backtrack"]
    if name not in others:
        raise InputError(
            f"strategy backtrack: then={name!r} is not none or one of {', '.join(others)}"
        )
    try:
        return load_strategy(spec)
    except MissingDependencyError:
        if spec != BacktrackOptions.model_fields["then"].default:
            raise
        return None  # the fallback moves embeddings, which no engine has without torch
