"""Toxicity scorers map texts to scores in [0, 1] or raise an error; they import no engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any

from tide.core.errors import InputError, ScorerError, guarded
from tide.plugins.registry import Registry
from tide.plugins.specs import WRAPPERS, Spec, parse, parse_spec

if TYPE_CHECKING:
    from tide.scorers.base import AsyncScorer, Scorer

# The scorer of Python, the commands and the server: `exchange` decides, where `pocket` points.
DEFAULT_SCORER = "confirm:pocket,exchange"
REGISTRY = Registry(
    "scorer",
    {
        "pocket": "tide.scorers.pocket:PocketScorer",
        "sentence": "tide.scorers.encoder:SentenceScorer",
        "exchange": "tide.scorers.encoder:ExchangeScorer",
        "hf": "tide.scorers.classifiers:HuggingFaceScorer",
        "guard": "tide.scorers.guards:guard",
        "profanity-check": "tide.scorers.words:ProfanityCheckScorer",
        "lexicon": "tide.scorers.words:LexiconScorer",
        "openai-moderation": "tide.scorers.services:OpenAIModerationScorer",
        "classifier": "tide.scorers.services:ServedClassifier",
        "cache": "tide.scorers.wrappers:CachedScorer",
        "windows": "tide.scorers.wrappers:WindowedScorer",
        "max": "tide.scorers.wrappers:MaxScorer",
        "mean": "tide.scorers.wrappers:MeanScorer",
        "confirm": "tide.scorers.wrappers:ConfirmScorer",
        "fallback": "tide.scorers.wrappers:FallbackScorer",
    },
)


def load_scorer(scorer: str | Scorer | AsyncScorer | Callable[[list[Any]], Any]) -> Scorer:
    """Load a scorer.

        NAME                        pocket
        NAME:ARGUMENT               hf:ID, lexicon:FILE
        NAME:KEY=VALUE,...          a class with an `options_class`
        WRAPPER:SCORER              cache:pocket, windows:hf:ID
        max:SCORER,SCORER...        max:pocket,cache:lexicon  (and mean:)
        confirm:SCORER,SCORER       confirm:pocket,exchange
        fallback:SCORER,SCORER      fallback:openai-moderation,pocket

    NAME may also be `module:Class`, `file.py:Class`, or `file.py:function`, a function from a list
    of texts to a list of scores, or from `Exchange`s if its attribute `reads` is "exchange". In
    `max`, `mean`, `confirm` and `fallback` a comma separates scorers unless it is in parentheses:
    `max:(hf:ID#x,y),pocket`.

    Args:
        scorer: A spec as above, a `Scorer` or `AsyncScorer` (returned unchanged), or a function,
            which may be an `async def`.

    Raises:
        InputError: The spec is invalid.
        ScorerError: The scorer cannot be loaded.
    """
    from tide.scorers.base import CallableScorer, Scorer  # noqa: PLC0415  (numpy)

    if isinstance(scorer, str):
        return _create(parse(scorer, "scorer", REGISTRY.names()))
    if isinstance(scorer, type):
        raise InputError(
            f"scorer: {scorer.__name__} is a class; pass an instance, {scorer.__name__}()"
        )
    if callable(scorer) and not isinstance(scorer, Scorer):
        return CallableScorer(scorer)
    return _complete(scorer, "scorer")


def _create(spec: Spec) -> Scorer:
    from tide.scorers.base import CallableScorer  # noqa: PLC0415  (numpy)

    create, usage = REGISTRY.load(spec.name), WRAPPERS.get(spec.name, "")
    if is_function(create):
        if spec.argument is not None:
            raise InputError(f"scorer {str(spec)!r}: a function takes no argument")
        name = f"callable:{spec.name}" if ":" in spec.name else spec.name
        return CallableScorer(create, name)
    arguments: list[Any] = [] if spec.argument is None else [spec.argument]
    if hasattr(create, "options_class"):
        _, values = parse_spec(str(spec), "scorer", REGISTRY.names())
        arguments = [create.options_class.of("scorer", spec.name, values)]
    elif spec.inner:
        arguments = [spec.inner]
    try:
        inspect.signature(create).bind(*arguments)
    except TypeError:
        needs = f"write {usage}" if usage else f"needs an argument: {spec.name}:ARGUMENT"
        problem = "takes no argument" if spec.argument is not None else needs
        raise InputError(f"scorer {str(spec)!r}: {problem}") from None
    if spec.inner:
        members = [_create(member) for member in spec.inner]
        arguments[0] = members if "," in usage else members[0]
    with guarded(ScorerError, f"scorer {str(spec)!r} cannot be loaded"):
        return _complete(create(*arguments), f"scorer {str(spec)!r}")


def is_function(create: Any) -> bool:
    """Whether `create` scores the texts that it must get; other functions make a scorer."""
    if inspect.isclass(create) or str(create.__module__).startswith("tide."):
        return False
    first = next(iter(inspect.signature(create).parameters.values()), None)
    if first is None or first.default is not first.empty:
        return False
    return first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)


def _complete(loaded: Any, origin: str) -> Scorer:
    """Return `loaded` if it has the members of a scorer. origin: its name in the InputError."""
    # A class that inherits tide.Scorer passes isinstance even without these attributes.
    has = ("name", "threshold", "score", "close")
    if missing := ", ".join(name for name in has if not hasattr(loaded, name)):
        raise InputError(
            f"{origin}: {type(loaded).__name__} has no {missing}; let its class inherit "
            "tide.Scorer and have name, threshold and score"
        )
    scorer: Scorer = loaded
    for name, kind in (("name", str), ("threshold", Real)):
        if not isinstance(value := getattr(scorer, name), kind):
            raise InputError(f"{origin}: its {name} must not be {value!r}")
    return scorer
