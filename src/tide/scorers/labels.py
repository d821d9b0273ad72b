"""Chooses the toxic labels of a classifier, and how several become one score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tide.core.errors import InputError
from tide.core.sanitize import logger

_LOG = logger(__name__)

# Labels of the usual toxicity models, lower case, without separators.
_TOXIC_LABELS = {
    "abusive", "hate", "hatespeech", "hateful", "identityattack", "identityhate", "insult",
    "obscene", "offensive", "offensivelanguage", "profanity", "severetoxic", "severetoxicity",
    "sexualexplicit", "threat", "toxic", "toxicity", "harmful", "hap",
}  # fmt: skip


def how_joined(wanted: str) -> tuple[Literal["max", "sum", ""], str]:
    """Parse `sum:a,b`: how several labels become one score, if given, and the labels."""
    if wanted.startswith("max:"):
        return "max", wanted[4:]
    return ("sum", wanted[4:]) if wanted.startswith("sum:") else ("", wanted)


def is_toxic(label: str) -> bool:
    """Whether a label has one of the usual names for toxic text."""
    return label.lower().translate({45: None, 95: None, 32: None}) in _TOXIC_LABELS


def toxic_columns(scorer: str, labels: Sequence[str], wanted: str) -> list[int]:
    """The places of the labels that mean toxic: those `wanted` (comma-separated), or by their name.

    scorer: as it was asked for, without labels. Of two labels without names the second one is
    taken, with a warning. Raises InputError for unknown labels, and if no label's name is known.
    """
    if wanted:
        missing = [label for label in wanted.split(",") if label not in labels]
        if missing:
            has = ", ".join(labels)
            raise InputError(f"scorer {scorer}: no label {missing[0]!r}; it has {has}")
        return [labels.index(label) for label in wanted.split(",")]
    if toxic := [i for i, label in enumerate(labels) if is_toxic(label)]:
        return toxic
    if len(labels) == 1:
        return [0]
    if set(labels) == {"LABEL_0", "LABEL_1"}:
        _LOG.warning(
            "scorer %s: its two labels have no names; LABEL_1 is taken as toxic "
            "(append #LABEL_0 if it is the other)", scorer,
        )  # fmt: skip
        return [labels.index("LABEL_1")]
    raise InputError(
        f"scorer {scorer}: which of its labels mean toxic ({', '.join(labels)})? name them after "
        f"'#', with commas: {scorer}#LABEL"
    )
