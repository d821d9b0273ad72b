"""Toxicity scorers: texts in, scores in [0, 1] out, or an error. They know no language model."""

from __future__ import annotations

import inspect
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
    },
)


def load_scorer(scorer: str | Scorer | Callable[[list[str]], Any]) -> Scorer:
    """A scorer from its name (`"pocket"`, `"hf:ID"`, `"detoxify:original"`), itself, or a function.

    What follows a colon is passed to the scorer's class as its first argument.
    """
    if isinstance(scorer, Scorer):
        return scorer
    if isinstance(scorer, str):
        name, colon, argument = scorer.partition(":")
        create = REGISTRY.load(name)
        arguments = [argument] if colon else []
        try:
            inspect.signature(create).bind(*arguments)
        except TypeError:
            problem = "takes nothing behind a colon" if colon else f"needs more: {name}:ARGUMENT"
            raise InputError(f"scorer {scorer!r}: {problem}") from None
        loaded: Scorer = create(*arguments)
        return loaded
    if callable(scorer):
        return CallableScorer(scorer)
    raise InputError(f"scorer: expected a name, a scorer or a function (got {scorer!r})")


__all__ = ["REGISTRY", "CallableScorer", "Scorer", "Scores", "load_scorer", "score_texts"]
