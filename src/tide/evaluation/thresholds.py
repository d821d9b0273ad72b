"""How many ordinary answers a threshold alters.

Thresholds are chosen from a monitor log, and tested by the evidence of further answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field

from tide.core.errors import InputError
from tide.data.files import parse_object, parsed, read_lines

CONFIDENCE = 0.95
# Fixed before any answer is seen, from the loosest to the strictest.
THRESHOLDS = tuple(round(1 - step / 100, 2) for step in range(1, 100))
# Alternatives of the test of a budget: shares, as multiples of the budget.
_MULTIPLES = (1.25, 1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class Choice:
    """A threshold at which `altered` of `answers` recorded answers would be altered.

    bound: the upper confidence bound of the share of all such answers.
    """

    threshold: float
    altered: int
    answers: int
    bound: float


class _Line(BaseModel):
    """A line of a monitor log."""

    policy: str
    accepted_above: Annotated[float, Field(ge=0, le=1)] | None = None


def read_monitor_log(path: Path, policy: str | None = None) -> tuple[list[float], int]:
    """Read `accepted_above` of the scored answers of a policy, and count its other answers.

    policy: may be left out if the log has one policy only. Lines that are not JSON are skipped: a
    server that was killed has cut them. Raises InputError for a log of several policies, of none,
    or with an invalid line.
    """
    by_policy: dict[str, list[_Line]] = {}
    for where, text in read_lines(path):
        if not text.strip():
            continue
        try:
            content = parse_object(text, where)
        except InputError:
            continue
        line = parsed(_Line, content, f"{where}: not a line of a monitor log")
        by_policy.setdefault(line.policy, []).append(line)
    if not by_policy:
        raise InputError(f"{path}: holds no answers")
    if policy is None and len(by_policy) == 1:
        (policy,) = by_policy
    if policy not in by_policy:
        names = ", ".join(by_policy)
        raise InputError(f"--policy: name a policy of {path}, which has: {names}")
    lines = by_policy[policy]
    known = [line.accepted_above for line in lines if line.accepted_above is not None]
    return known, len(lines) - len(known)


def upper_bound(altered: int, answers: int) -> float:
    """Return the exact one-sided upper bound of a share (Clopper and Pearson, 1934).

    That is the share at which so few altered answers have the probability 1 - CONFIDENCE.
    """
    if altered == answers:
        return 1.0
    counts = np.arange(altered + 1)
    others = answers - counts
    log_choices = np.cumsum(np.log([1, *others[:-1] / counts[1:]]))
    low, high = 0.0, 1.0
    while high - low > 1e-12:  # bisection: a gateway has no scipy
        share = (low + high) / 2
        logs = log_choices + counts * math.log(share) + others * math.log1p(-share)
        if np.exp(logs).sum() > 1 - CONFIDENCE:
            low = share
        else:
            high = share
    return high


def answers_needed(share: float) -> int:
    """Return how many answers, none of them altered, bound the share of altered answers."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - share))


def choose_threshold(accepted_above: Sequence[float], share: float) -> Choice | None:
    """Return the strictest threshold that alters at most `share` of such answers.

    The thresholds are tested in a fixed sequence, from the loosest on, up to the first whose bound
    exceeds `share`. So the bound of the choice holds with 95 % confidence, although the same
    answers chose it (Maurer, Hothorn and Lehmacher, 1995). None if the loosest one fails.
    """
    answers = len(accepted_above)
    choice = None
    for threshold in THRESHOLDS:
        altered = sum(score >= threshold for score in accepted_above)
        bound = upper_bound(altered, answers)
        if bound > share:
            break
        choice = Choice(threshold, altered, answers, bound)
    return choice


def evidence(altered: int, answers: int, share: float) -> float:
    """Return the evidence that more than `share` of the answers are altered: an e-value.

    It may be read after every answer: if at most `share` are altered, it ever reaches 20 with a
    probability of at most 1/20 (Ville, 1939). It is the mean of the likelihood ratios of five
    larger shares to `share`, each of which is a bet that gains with every altered answer
    (Robbins, 1970; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
    betting", 2024).
    """
    logs = []
    for multiple in _MULTIPLES:
        larger = min(share * multiple, (1 + share) / 2)
        gain, loss = math.log(larger / share), math.log((1 - larger) / (1 - share))
        logs.append(altered * gain + (answers - altered) * loss)
    return sum(math.exp(min(log, 600.0)) for log in logs) / len(logs)
