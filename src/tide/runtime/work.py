"""What a scheduler works on: searches, and courses of several pieces of work."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tide.core.errors import ScorerError, StrategyError, TideError, guarded
from tide.core.results import Evaluation
from tide.core.settings import EmptyPolicy, Sampling
from tide.engines.base import Completion
from tide.scorers.base import Scorer, Scores, is_empty, score_groups
from tide.search.base import SearchStrategy

if TYPE_CHECKING:
    from tide.runtime.draft import Draft


@dataclass(eq=False)
class Search:
    """One trial of one prompt on its way.

    token_ids: the unmodified prompt. sampling, empty_policy: how its completions are drawn, and
    what an empty one scores. deadline: by `time.monotonic()`, when it ends with the best it has.
    order: the lowest is served first. tag: what the submitter knows it by. context: text that
    stands before its completions, and is scored with them. shape: what becomes of a completion
    before it is scored. course: what it is a piece of. decode: whether to find the nearest tokens
    of the point that it ends with.
    trace and completions (token ids) grow with each round. error: why it ended without a result.
    written_tokens: of all completions, before they were shaped. nearest: token ids and text of the
    nearest tokens; None without `decode`, and where the search ended with the prompt itself, or
    with a point of an earlier round.
    """

    strategy: SearchStrategy
    token_ids: tuple[int, ...]
    sampling: Sampling
    empty_policy: EmptyPolicy = "unmodified"
    deadline: float = math.inf
    order: int = 0
    tag: Any = None
    context: str = ""
    shape: Callable[[Completion], Completion] | None = None
    course: Course | None = None
    decode: bool = False
    written_tokens: int = 0
    nearest: tuple[tuple[int, ...], str | None] | None = None
    trace: list[Evaluation] = field(default_factory=list)
    completions: list[tuple[int, ...]] = field(default_factory=list)
    scorer_calls: int = 0
    likelihood_calls: int = 0
    error: TideError | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """Leave at the next step. Nothing of it is scored afterwards, and it is not returned."""
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self.error is not None or self.strategy.done


@dataclass(eq=False)
class Check:
    """Texts to be scored, nothing else. scores: of them, unless there is an error."""

    texts: list[str]
    empty_policy: EmptyPolicy
    course: Course | None = None
    scores: Scores | None = None
    error: TideError | None = None
    cancelled: bool = False


class Course(ABC):
    """Work of several pieces, of which each begins when the one before has ended.

    order, tag, error: as a Search has them.
    """

    def __init__(self, order: int, tag: Any) -> None:
        self.order, self.tag = order, tag
        self.error: TideError | None = None
        self.cancelled = False
        self._pieces = self.pieces()
        self._piece: Piece | None = None

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Yields a piece, and is resumed when that has ended. Raises TideError."""

    def following(self) -> Piece | None:
        """The next piece; None if there is none, or if it failed, which is its `error`."""
        try:
            with guarded(StrategyError, "the answer failed"):
                self._piece = next(self._pieces, None)
        except TideError as error:
            self.error, self._piece = error, None
        if self._piece is not None:
            self._piece.course = self
            self._piece.cancelled = self.cancelled
        return self._piece

    def cancel(self) -> None:
        """Leave at the next step. Nothing of it is scored afterwards, and it is not returned."""
        self.cancelled = True
        if self._piece is not None:
            self._piece.cancelled = True


Piece: TypeAlias = "Search | Draft | Check"
# Texts, the text before each that is scored with it, and what an empty one scores.
Texts = tuple[list[str], list[str], EmptyPolicy]


def score_all(asked: Sequence[Texts], scorer: Scorer) -> list[Scores | TideError]:
    """The scores of each group of texts, or why they have none; equal texts are sent once.

    By the policy of 1.0, a text that is empty itself counts, whatever stands before it.
    """
    found: dict[int, Scores | TideError] = {}
    for policy in dict.fromkeys(policy for _, _, policy in asked):
        rows = [i for i, (_, _, one) in enumerate(asked) if one == policy]
        groups = [
            [
                text if policy == "one" and is_empty(text) else before + text
                for text, before in zip(*asked[i][:2], strict=True)
            ]
            for i in rows
        ]
        try:
            found.update(zip(rows, score_groups(scorer, groups, policy), strict=True))
        except ScorerError as error:  # the scorer's own, and so that of all
            found.update(dict.fromkeys(rows, error))
    return [found[i] for i in range(len(asked))]
