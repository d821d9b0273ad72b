"""Chooses the toxic labels of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from tide.core.errors import InputError
from tide.core.sanitize import logger

_LOG = logger(__name__)

# Toxic labels of common models, in lower case and without separators.
_TOXIC_LABELS = {
    "abusive", "hate", "hatespeech", "hateful", "identityattack", "identityhate", "insult",
    "obscene", "offensive", "offensivelanguage", "profanity", "severetoxic", "severetoxicity",
    "sexualexplicit", "threat", "toxic", "toxicity", "harmful", "hap",
}  # fmt: skip


def is_toxic(label: str) -> bool:
    """Whether a label is a common name for toxic text."""
    return label.lower().translate({45: None, 95: None, 32: None}) in _TOXIC_LABELS


def toxic_columns(scorer: str, labels: Sequence[str], wanted: str) -> list[int]:
    """Return the indices of the labels `wanted` (comma-separated), else of common toxic labels.

    Without common toxic labels, a single label is toxic, or LABEL_1 of LABEL_0 and LABEL_1, with a
    warning. scorer: the scorer's spec without labels, for messages. Raises InputError for unknown
    labels, and if it is unclear which labels are toxic.
    """
    if wanted:
        named = list(dict.fromkeys(wanted.split(",")))
        missing = [label for label in named if label not in labels]
        if missing:
            has = ", ".join(labels)
            raise InputError(f"scorer {scorer}: no label {missing[0]!r}; it has {has}")
        return [labels.index(label) for label in named]
    if toxic := [i for i, label in enumerate(labels) if is_toxic(label)]:
        return toxic
    if len(labels) == 1:
        return [0]
    if set(labels) == {"LABEL_0", "LABEL_1"}:
        _LOG.warning(
            "scorer %s: its two labels have no names; LABEL_1 is taken as toxic "
            "(append #LABEL_0 if LABEL_0 is toxic)", scorer,
        )  # fmt: skip
        return [labels.index("LABEL_1")]
    raise InputError(
        f"scorer {scorer}: it is unclear which labels are toxic ({', '.join(labels)}); append the "
        f"toxic labels, as in {scorer}#LABEL,LABEL"
    )


def check_exclusive(scorer: str, labels: Sequence[str], toxic: Sequence[int], fix: str) -> None:
    """Refuse exclusive labels that are all toxic: they add up to 1 for every text.

    scorer: as in `toxic_columns`. toxic: indices of the chosen labels. fix: advice if every label
    has a toxic name. Raises InputError.
    """
    if all(map(is_toxic, labels)):
        raise InputError(
            f"scorer {scorer}: all its labels ({', '.join(labels)}) are toxic and exclude each "
            f"other, so they add up to 1 for every text; {fix}"
        )
    if len(set(toxic)) == len(labels):
        raise InputError(
            f"scorer {scorer}: its labels exclude each other, so together they add up to 1 for "
            f"every text; name only the toxic ones of {', '.join(labels)}"
        )
