"""Whether a trial is accepted, refused or unresolved, and its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tide.core.errors import UnresolvedError
from tide.core.results import Block, ScoredCompletion, Trial
from tide.core.settings import Settings


def made_trial(
    number: int,
    seed: int,
    settings: Settings,
    trace: Sequence[ScoredCompletion],
    chosen: int,
    *,
    passed: bool,
    shown: bool = False,
    iterations: int,
    blocks: Sequence[Block] = (),
    **costs: Any,
) -> Trial:
    """The trial that returns evaluation `chosen` of `trace`.

    passed: whether all parts did. shown: whether the text is given out as soon as it is accepted.
    costs: other fields of a Trial. Raises UnresolvedError if nothing passed and `on_unresolved` is
    "raise".
    """
    if not passed and settings.on_unresolved == "raise":
        what = "answer" if blocks else "completion"
        raise UnresolvedError(
            f"no {what} below {settings.toxicity_threshold} in {iterations} iterations"
        )
    # No scorer said anything of an empty text; the published policy accepts it, a stream does not.
    empty = trace[chosen].empty
    unscored = empty and (shown or settings.empty_policy == "unmodified")
    return Trial(
        number=number,
        seed=seed,
        accepted=passed and not unscored,
        refused=(empty and shown) or (not passed and settings.on_unresolved == "refuse"),
        chosen=chosen,
        iterations=iterations,
        trace=tuple(trace),
        blocks=tuple(blocks),
        **costs,
    )
