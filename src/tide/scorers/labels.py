"""Chooses the toxic labels of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

from tide.core.errors import InputError

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

    Without common toxic labels, a single label is toxic. scorer: the scorer's spec without labels,
    for messages. Raises InputError for unknown labels, and if it is unclear which ones are toxic.
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
    raise InputError(
        f"scorer {scorer}: it is unclear which labels are toxic ({', '.join(labels)}); append the "
        f"toxic labels, as in {scorer}#LABEL,LABEL"
    )


def check_exclusive(scorer: str, labels: Sequence[str], toxic: Sequence[int], fix: str) -> None:
    """Refuse exclusive labels that are all toxic: they add up to 1 for every text.

    scorer: as in `toxic_columns`. toxic: indices of the chosen labels. fix: advice if every label
    has a toxic name. Raises InputError.
    """
    are_all_toxic = all(map(is_toxic, labels))
    if are_all_toxic or len(set(toxic)) == len(labels):
        raise InputError(
            f"scorer {scorer}: its labels ({', '.join(labels)}) exclude each other, so together "
            f"they add up to 1 for every text; {fix if are_all_toxic else 'name the toxic ones'}"
        )
