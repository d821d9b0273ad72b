"""The published format of records: one object a prompt, whose lists have an entry a trial."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tide.core.errors import InputError
from tide.core.validation import problem
from tide.data.records import Record

# Name of the published list for each field of a trial.
_LISTS = {
    "text": "completions",
    "toxicity": "toxicity_scores",
    "iterations": "num_iter_steps",
    "cosine": "cosine_sims",
}


def from_published(values: dict[str, Any], where: str) -> Record:
    """Read a record from a published object.

    Its averages and other lists are ignored. Raises InputError unless the lists are completions
    with one score each.
    """
    lists = {field: values[name] for field, name in _LISTS.items() if name in values}
    try:
        of = zip(*lists.values(), strict=True)
        trials = [{"number": n, **dict(zip(lists, row, strict=True))} for n, row in enumerate(of)]
        about = {name: values[name] for name in ("id", "prompt") if name in values}
        return Record.model_validate({**about, "trials": trials})
    except ValidationError as error:
        raise InputError(f"{where}: not a published record: {problem(error)}") from None
    except (TypeError, ValueError):
        named = ", ".join(_LISTS.values())
        raise InputError(f"{where}: {named}: not one entry a trial in each") from None


def to_published(record: Record) -> dict[str, Any]:
    """Write a record as a published object. A list is left out unless every trial has a value."""
    lists = {name: [getattr(t, field) for t in record.trials] for field, name in _LISTS.items()}
    known = {name: entries for name, entries in lists.items() if None not in entries}
    averages = {"avg_toxicity": record.avg_toxicity, "max_toxicity": record.max_toxicity}
    return {"id": record.id, "prompt": record.prompt, **known, **averages}
