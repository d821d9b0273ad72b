"""Repair without moving the prompt: ban the word that the scorer blames, and continue."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import Field

from tide.core.errors import InputError
from tide.core.settings import Settings
from tide.plugins.options import Options
from tide.plugins.specs import parse_spec
from tide.search.base import (
    BlameRequest,
    Continuation,
    LikelihoodRequest,
    Part,
    Point,
    Steps,
    Strategy,
)


class BacktrackOptions(Options):
    blame: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="The word is blamed with which the score reaches this share of the threshold.",
    )
    holds: int = Field(default=12, ge=1, le=100, description="Maximum number of banned words.")
    hold: bool = Field(
        default=True, description="Hold blamed words back; without it, only go back and redraw."
    )
    back: bool = Field(
        default=True,
        description="Keep what stands before the blamed word; without it, write everything anew.",
    )
    least: int = Field(
        default=5, ge=0, le=1000, description="Tokens before which a repaired text does not end."
    )
    cool: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="What is written on is drawn at this share of the temperature.",
    )
    then: str = Field(
        default="ladder:from=0.6,growth=1.3,samples_growth=1.5",
        description="Strategy for what is left, in parentheses where it has options, or none. "
        "Engines without embeddings do without it.",
    )


class BacktrackStrategy(Strategy):
    """Write on from before the word that the scorer blames, without this word, until it passes.

    The blamed word is the last of the shortest prefix whose score reaches a share of the threshold
    (found by bisection). Its first token, in every spelling, is banned for the rest of the
    completion. After `holds` words another strategy takes over, from the prompt itself.

    Related: token-wise rejection sampling with backtracking (Botta et al. 2025, arXiv 2502.12123),
    RAIN (Li et al. 2023, arXiv 2309.07124) and word filters (Gehman et al. 2020).
    """

    options_class = BacktrackOptions
    options: BacktrackOptions
    moves = False
    continues = True

    @classmethod
    def check(cls, options: BacktrackOptions, settings: Settings) -> None:
        if (then := _loaded(options.then)) is not None:
            then.check(settings)

    @property
    def max_iterations(self) -> int:
        return self.options.holds + self.settings.max_iterations

    def steps(self, start: Point) -> Steps:
        options, evaluation = self.options, start.evaluations[0]
        held: tuple[tuple[int, int], ...] = ()
        share = options.blame * self.settings.toxicity_threshold
        for number in range(options.holds):
            (before,) = yield BlameRequest(evaluation, share)
            place = int(before)
            if options.hold:
                held += ((evaluation, place),)
            self.iterations += 1
            (score,) = yield Continuation(
                evaluation,
                place if options.back else 0,
                held,
                options.least,
                self.iterations,
                self.sampling_seed("backtrack", number),
                options.cool,
            )
            evaluation = len(self._scores) - 1
            if self.passes(score):
                yield from self.end_with(evaluation)
        then = _loaded(options.then)
        if then is not None and self.problem.can_move:
            yield from self._take_over(then)

    def _take_over(self, then: Any) -> Part[None]:
        """Let another strategy continue; it is given the prompt's own completion."""
        search = then.create(self.problem, self.settings)
        search.ask()
        search.tell(self._scores[:1])
        numbers, before = [0], self.iterations
        while not search.done:
            asked = search.ask()
            if isinstance(asked, LikelihoodRequest):
                values = yield LikelihoodRequest(tuple(numbers[n] for n in asked.evaluations))
            else:
                numbers += range(len(self._scores), len(self._scores) + len(asked))
                values = yield asked
            search.tell(values)
            self.iterations = before + search.iterations - 1
        best = numbers[search.best]
        if self.passes(self._scores[best]):
            yield from self.end_with(best)


@lru_cache(maxsize=64)
def _loaded(spec: str) -> Any:
    """The strategy of a spec; None for `none`. Raises InputError for one not registered."""
    from tide.search import REGISTRY, load_strategy  # noqa: PLC0415  (which knows this module)

    if spec == "none":
        return None
    # No class of a file: a preset, which may be anybody's, would bring code.
    name, _ = parse_spec(spec, "strategy backtrack: then")
    others = [one for one in REGISTRY.names() if one != "backtrack"]
    if name not in others:
        raise InputError(
            f"strategy backtrack: then: {name!r} is not none or one of {', '.join(others)}"
        )
    return load_strategy(spec)
