"""What some scorers say beside their one score: threat, insult, attacks on an identity...

A scorer with attributes has `attributes`, their names, and `score_attributes`. Its score is made of
them (the largest of those that were chosen), so both come from one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from tide.core.errors import ScorerError
from tide.scorers.base import Floats, Scorer, ask, believed, called

# Labels whose names in Perspective's protocol differ from their capitals (those of Jigsaw's data).
_PERSPECTIVE_NAMES = {
    "TOXIC": "TOXICITY",
    "SEVERE_TOXIC": "SEVERE_TOXICITY",
    "IDENTITY_HATE": "IDENTITY_ATTACK",
    "SEXUAL_EXPLICIT": "SEXUALLY_EXPLICIT",
}


class Attributed(NamedTuple):
    """Scores and attributes of n texts, each of shape (n,), in [0, 1].

    An attribute that is not known of a text is NaN; a score is always known.
    """

    values: Floats
    attributes: Mapping[str, Floats]


@runtime_checkable
class AttributeScorer(Scorer, Protocol):
    """A scorer that also scores single attributes of a text.

    attributes: their names, as the model or service calls them.
    """

    attributes: tuple[str, ...]

    def score_attributes(self, texts: Sequence[str]) -> Attributed:
        """What `score` gives, and each attribute; both in [0, 1], shape (len(texts),)."""
        ...


def attributes_of(scorer: Scorer) -> tuple[str, ...]:
    """The names of the scorer's attributes; empty if it has none."""
    return scorer.attributes if isinstance(scorer, AttributeScorer) else ()


def ask_attributes(scorer: Scorer, texts: Sequence[str]) -> Attributed:
    """Scores of `texts`, and attributes if the scorer has some, refused unless in [0, 1].

    Nobody is asked about no texts. Raises as `tide.scorers.base.ask`, and ScorerError for other
    attributes than it names.
    """
    if not texts:
        return Attributed(np.zeros(0), {name: np.zeros(0) for name in attributes_of(scorer)})
    if not isinstance(scorer, AttributeScorer) or not scorer.attributes:
        return Attributed(np.array(ask(scorer, texts), dtype=np.float64), {})
    answer = called(scorer.name, lambda: scorer.score_attributes(list(texts)))
    if not isinstance(answer, Attributed) or set(answer.attributes) != set(scorer.attributes):
        raise ScorerError(f"scorer {scorer.name}: the answer has not the attributes that it names")
    return Attributed(
        believed(scorer.name, answer.values, len(texts)),
        {
            name: believed(
                f"{scorer.name} ({name})", answer.attributes[name], len(texts), unknown=True
            )
            for name in scorer.attributes
        },
    )


def perspective_name(attribute: str) -> str:
    """What Perspective's protocol calls an attribute: `identity_attack` is IDENTITY_ATTACK."""
    name = "".join(c if c.isalnum() else "_" for c in attribute.upper())
    return _PERSPECTIVE_NAMES.get(name, name)
