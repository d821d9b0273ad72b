"""Toxicity scorers: texts in, scores in [0, 1] out, or an error. They know no language model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from tide.errors import InputError
from tide.registry import Registry
from tide.scorers.base import CallableScorer, Scorer, Scores, score_texts

REGISTRY = Registry(
    "scorer",
    {
        "pocket": "tide.scorers.pocket:PocketScorer",
        "hf": "tide.scorers.huggingface:HuggingFaceScorer",
        "detoxify": "tide.scorers.detoxify:DetoxifyScorer",
        "profanity-check": "tide.scorers.profanity:ProfanityCheckScorer",
        "lexicon": "tide.scorers.lexicon:LexiconScorer",
        "perspective": "tide.scorers.services.perspective:PerspectiveScorer",
        "openai-moderation": "tide.scorers.services.openai_moderation:OpenAIModerationScorer",
        "calibrated": "tide.scorers.wrappers.calibration:CalibratedScorer",
        "cache": "tide.scorers.wrappers.cache:CachedScorer",
        "rate": "tide.scorers.wrappers.guards:RateLimitedScorer",
        "retry": "tide.scorers.wrappers.guards:RetryScorer",
        "breaker": "tide.scorers.wrappers.guards:CircuitBreaker",
        "windows": "tide.scorers.wrappers.windows:WindowedScorer",
        "max": "tide.scorers.wrappers.ensembles:MaxScorer",
        "mean": "tide.scorers.wrappers.ensembles:MeanScorer",
    },
)
# What stands around other scorers, and how it is written; a NUMBER is its one setting.
_AROUND = {
    "cache": "cache:SCORER",
    "rate": "rate:NUMBER:SCORER",
    "retry": "retry:SCORER or retry:NUMBER:SCORER",
    "breaker": "breaker:SCORER or breaker:NUMBER:SCORER",
    "windows": "windows:SCORER or windows:NUMBER:SCORER",
    "max": "max:SCORER,SCORER",
    "mean": "mean:SCORER,SCORER",
}
_NUMBER = re.compile(r"\d+(\.\d+)?")


def load_scorer(scorer: str | Scorer | Callable[[list[str]], Any]) -> Scorer:
    """A scorer from its name, itself, or a function.

        NAME                        pocket
        NAME:ARGUMENT               hf:ID, detoxify:original, calibrated:FILE
        WRAPPER:SCORER              cache:perspective
        WRAPPER:NUMBER:SCORER       rate:5:hf:ID, windows:50:pocket
        max:SCORER,SCORER...        max:pocket,cache:perspective  (and mean:)

    An argument is passed to the scorer's class as its first one. Inside an ensemble a comma always
    parts scorers. Raises InputError for a name that cannot be read, and what the scorer raises.
    """
    if isinstance(scorer, str):
        return _load(scorer)
    if isinstance(scorer, Scorer):
        return scorer
    if callable(scorer):
        return CallableScorer(scorer)
    raise InputError(f"scorer: expected a name, a scorer or a function (got {scorer!r})")


def _load(spec: str) -> Scorer:
    name, colon, argument = spec.partition(":")
    create = REGISTRY.load(name)
    usage = _AROUND.get(name, "")
    arguments: list[Any] = [argument] if colon else []
    number, _, inner = argument.partition(":")
    if "NUMBER" in usage and _NUMBER.fullmatch(number):
        arguments = [inner, float(number)]
    try:
        inspect.signature(create).bind(*arguments)
    except TypeError:
        needs = f"write {usage}" if usage else f"needs more: {name}:ARGUMENT"
        problem = "takes nothing behind a colon" if colon and not usage else needs
        raise InputError(f"scorer {spec!r}: {problem}") from None
    if "," in usage:
        arguments[0] = [_load(part) for part in argument.split(",")]
    elif usage:
        arguments[0] = _load(arguments[0])
    loaded: Scorer = create(*arguments)
    return loaded


__all__ = ["REGISTRY", "CallableScorer", "Scorer", "Scores", "load_scorer", "score_texts"]
