"""Turns a guard's verdict into a score.

A guard answers with a verdict, such as "safe", "No" or "Safety: Unsafe". The log-probabilities of
the answer show how certain the guard is. The score is the probability of the toxic
verdicts among all verdicts at the token where the verdict begins, which need not be the first token
of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Minimum probability of all verdicts together if the chosen token is not a verdict.
_LEAST = 0.01
# Minimum ratio of the chosen token's probability to the highest; rounding may make it less than 1.
_ROUNDING = 0.5
# Characters that may surround a verdict.
_AROUND = " \t\r\n\"'`*_"


class Place(NamedTuple):
    """One token of an answer, and the texts and log-probabilities of the likeliest tokens.

    A server may list only the chosen token.
    """

    chosen: str
    likeliest: Sequence[tuple[str, float]]


class NoVerdict(ValueError):
    """The answer holds no verdict. The message quotes the beginning of the answer."""


class Verdict(NamedTuple):
    """score: in [0, 1]. before: the guard's text before its verdict."""

    score: float
    before: str


def read_verdict(
    places: Sequence[Place], verdicts: Mapping[str, float], lead: str = "", written: str = ""
) -> Verdict:
    """Find the verdict in an answer. Raises NoVerdict.

    verdicts: toxicity of each verdict in [0, 1]. lead: the text before the verdict ("Safety:");
    any text may precede the lead, but only spaces, quotes and markup may separate lead and verdict.
    written: the part of the answer that the prompt already holds.

    Tokens that the places do not list count as the most toxic verdict, so the score is never lower
    than with the whole vocabulary.
    """
    begun = len(written)
    for number, (chosen, likeliest) in enumerate(places):
        at = written.find(lead)
        if at >= 0:
            tail = written[at + len(lead) :].lstrip(_AROUND)
            meant = _meant(tail + chosen, verdicts)
            blank = not (tail + chosen).strip(_AROUND)
            if not blank and len(meant) < 2:
                if not _is_likeliest(chosen, likeliest):
                    raise NoVerdict(f"{chosen!r}, which is not the likeliest of the listed tokens,")
                rest = "".join(place.chosen for place in places[number:])
                if meant and not _meant(tail + rest, verdicts):
                    break  # "N/A" begins like "No"
                # A chosen verdict counts however unlikely it is; other verdicts need _LEAST.
                score = _score(tail, likeliest, verdicts, 0.0 if meant else _LEAST)
                if score is not None:
                    return Verdict(score, written[begun:])
                if not meant:
                    break
        written += chosen
    answer = "".join(place.chosen for place in places)
    raise NoVerdict(repr(answer[:40]))


def _is_likeliest(chosen: str, likeliest: Sequence[tuple[str, float]]) -> bool:
    """Whether the chosen token is nearly the likeliest; otherwise the list cannot be used."""
    probability = max(
        (math.exp(logprob) for text, logprob in likeliest if text == chosen), default=0.0
    )
    return probability >= _ROUNDING * max(
        (math.exp(logprob) for _, logprob in likeliest), default=0.0
    )


def _score(
    tail: str,
    likeliest: Sequence[tuple[str, float]],
    verdicts: Mapping[str, float],
    minimum: float,
) -> float | None:
    """Return the mean toxicity of the verdicts that may follow `tail`, weighted by probability.

    Return None unless the total probability of these verdicts exceeds `least`.
    """
    mass: dict[float, float] = {}
    listed = [(text, min(1.0, math.exp(logprob))) for text, logprob in likeliest]
    for text, probability in listed:
        meant = _meant(tail + text, verdicts)
        if len(meant) == 1:
            weight = next(iter(meant))
            mass[weight] = mass.get(weight, 0.0) + probability
    if sum(mass.values()) <= minimum:
        return None
    worst, left = max(verdicts.values()), 1.0 - sum(probability for _, probability in listed)
    mass[worst] = mass.get(worst, 0.0) + max(0.0, left)
    total = sum(mass.values())
    return min(1.0, sum(weight * p for weight, p in mass.items()) / total)


def _meant(text: str, verdicts: Mapping[str, float]) -> set[float]:
    """Return the toxicities of verdicts that begin with `text` or that `text` begins with."""
    text = text.lstrip(_AROUND)
    if not text:
        return set()
    return {
        weight
        for verdict, weight in verdicts.items()
        if verdict.startswith(text)
        or (text.startswith(verdict) and not text[len(verdict)].isalnum())
    }
