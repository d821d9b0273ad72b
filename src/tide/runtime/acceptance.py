"""Decides whether a text of given scores is accepted.

The setting `thresholds` gives single attributes their own limits. An attribute with its own limit
no longer counts in a score that is the highest of the scorer's attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tide.core.settings import Settings
from tide.scorers.base import FALLBACK, TextScore

# Name of the scorer's own score among the limits that a text fails.
SCORE = "toxicity"


@dataclass(frozen=True)
class Acceptance:
    """The limits of a run. highest_of: see `tide.scorers.base.AttributedScorer`."""

    settings: Settings
    highest_of: tuple[str, ...] = ()

    def passes(self, score: TextScore) -> bool:
        """Return whether a text of this score is accepted."""
        return self.settings.passes(self.scaled(score))

    def scaled(self, score: TextScore) -> float:
        """Return the score on the scale of `toxicity_threshold`, in [0, 1].

        A text reaches `toxicity_threshold` on this scale if it reaches any of its limits, except
        those that `on_fail` only flags: with a threshold of 0.1 and a limit of 0.4 for insults, an
        insult of 0.2 counts as 0.05.
        """
        if self._is_plain(score):
            return score.value
        shares = [value / limit for value, limit in self._unflagged(score)]
        return min(1.0, self.settings.toxicity_threshold * max(shares, default=0.0))

    def highest(self, score: TextScore) -> float:
        """Return the highest of `scaled` and the values that reach a limit.

        On the scale of `toxicity_threshold`, even a certain insult is low if its limit is high.
        """
        if self._is_plain(score):
            return score.value
        reached = [value for value, limit in self._unflagged(score) if value >= limit]
        return max([self.scaled(score), *reached])

    def _is_plain(self, score: TextScore) -> bool:
        """Return whether only the score itself counts, by `toxicity_threshold`."""
        return score.unscored or not (self.settings.thresholds or self.settings.on_fail)

    def _unflagged(self, score: TextScore) -> list[tuple[float, float]]:
        """Return the value and limit of each score that counts and is not only flagged."""
        return [
            (value, limit)
            for name, value, limit in self._limits(score)
            if not self._flags(name, score)
        ]

    def _flags(self, name: str, score: TextScore) -> bool:
        """Return whether a text that reaches a limit is given out; an unknown value never is."""
        is_known = name == SCORE or name in score.attributes
        # The verdict of a fallback's second scorer may be due to any of the attributes.
        by_second = bool(score.attributes.get(FALLBACK))
        limits = [name, *self.settings.thresholds] if by_second else [name]
        return is_known and self.settings.action(limits) == "flag"

    def blocks(self, score: TextScore) -> bool:
        """Return whether the answer ends before a text of this score instead of being repaired."""
        return self.settings.action(self.failed(score)) == "block"

    def accepted_above(self, score: TextScore) -> float:
        """Return the score that `toxicity_threshold` must exceed so that the text is accepted.

        It is 1 if an attribute reaches its own limit.
        """
        if score.unscored:
            return score.value
        (_, value, _), *limits = self._limits(score)
        return 1.0 if any(reached >= limit for _, reached, limit in limits) else value

    def failed(self, score: TextScore) -> tuple[str, ...]:
        """Return the names of the limits that a text of this score reaches."""
        if score.unscored:
            return ()
        return tuple(name for name, value, limit in self._limits(score) if value >= limit)

    def worst(self, scores: Sequence[TextScore]) -> TextScore:
        """Return the score of the text that is nearest to failing, or fails by most."""
        if len(scores) == 1:
            return scores[0]
        return max(scores, key=lambda score: (self.scaled(score), score.value))

    def _limits(self, score: TextScore) -> list[tuple[str, float, float]]:
        """Return the name, value and limit of each score that counts.

        An unknown attribute counts as 1, so that it fails, unless a second scorer has decided.
        """
        limits = [(SCORE, self._rest(score), self.settings.toxicity_threshold)]
        unknown = 0.0 if score.attributes.get(FALLBACK) else 1.0
        for name, limit in self.settings.thresholds.items():
            limits.append((name, score.attributes.get(name, unknown), limit))
        return limits

    def _rest(self, score: TextScore) -> float:
        """Return the score without the attributes that have their own limits.

        The verdict of a fallback's second scorer counts whole, as it is none of the attributes.
        """
        if score.attributes.get(FALLBACK):
            return score.value
        rest = [name for name in self.highest_of if name not in self.settings.thresholds]
        if len(rest) == len(self.highest_of) or any(name not in score.attributes for name in rest):
            return score.value
        return max((score.attributes[name] for name in rest), default=0.0)
