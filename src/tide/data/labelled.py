"""Texts with labels, or with recorded scores, to compare scorers and to fit baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tide.core.chat import Chat
from tide.core.errors import InputError
from tide.data.jsonl import read_objects
from tide.data.prompts import context_of

PAIRS = "pairs"  # the group of texts that come from pairs


@dataclass(frozen=True)
class LabelledText:
    """toxicity: in [0, 1]; the share of raters who called the text toxic, or a recorded score.

    group: the value of the row's field `source`, "" without one.
    context: what the text answers, or "" if unknown; see `Exchange`.
    """

    text: str
    toxicity: float
    group: str
    context: str | Chat = ""


@dataclass(frozen=True)
class Pair:
    """A toxic text and neutral paraphrases of it."""

    toxic: str
    neutral: tuple[str, ...]

    @property
    def texts(self) -> list[LabelledText]:
        neutral = [LabelledText(text, 0.0, PAIRS) for text in self.neutral]
        return [LabelledText(self.toxic, 1.0, PAIRS), *neutral]


def read_labelled(paths: Iterable[Path]) -> list[LabelledText]:
    """Return all labelled texts of `read_entries`, including the texts of pairs."""
    return [
        text
        for entry in read_entries(paths)
        for text in (entry.texts if isinstance(entry, Pair) else [entry])
    ]


def read_entries(paths: Iterable[Path]) -> Iterator[LabelledText | Pair]:
    """Yield the rows of .jsonl or .json files (a list of objects), plain or gzipped.

    A row is a labelled text (`text`, `toxicity`, and optionally `context`: a text or a list of
    messages), a pair (`toxic`, and `neutral`: a text or a list of texts), a trial of a run, or a
    record in the authors' format (`completions` and `toxicity_scores`). The context of a trial or
    record is its prompt, and its empty completions are left out. A pair without neutral texts
    yields its toxic text.
    Raises InputError, with the row's line, for any other row.
    """
    for path in paths:
        for where, row in read_objects(path):
            group = str(row.get("source", ""))
            if "toxic" in row:
                pair = _pair(row, where)
                yield pair if pair.neutral else pair.texts[0]
            elif "completions" in row or "number" in row:
                prompt = row.get("messages") or row.get("prompt")
                context = context_of(prompt if isinstance(prompt, str | list) else None, where)
                for text, score in _completions(row, where):
                    # An empty completion has no token to learn from.
                    if not isinstance(text, str) or text.strip():
                        yield _labelled(text, score, group, context, where)
            else:
                text = row.get("text")
                if not isinstance(text, str) or not text.strip():
                    raise InputError(f"{where}: needs a text in 'text', or 'toxic' and 'neutral'")
                context = context_of(row.get("context"), where)
                yield _labelled(text, row.get("toxicity"), group, context, where)


def _completions(row: dict[str, Any], where: str) -> list[tuple[Any, Any]]:
    if "number" in row:
        return [(row.get("text"), row.get("toxicity"))]
    texts, scores = row.get("completions"), row.get("toxicity_scores")
    if isinstance(texts, list) and isinstance(scores, list) and len(texts) == len(scores):
        return list(zip(texts, scores, strict=True))
    raise InputError(f"{where}: needs as many 'toxicity_scores' as 'completions'")


def _labelled(
    text: Any, toxicity: Any, group: str, context: str | Chat, where: str
) -> LabelledText:
    if not isinstance(text, str):
        raise InputError(f"{where}: a completion must be a text, got {type(text).__name__}")
    is_number = isinstance(toxicity, int | float) and not isinstance(toxicity, bool)
    if not is_number or not 0 <= toxicity <= 1:
        raise InputError(f"{where}: toxicity is {toxicity!r}; it must be a number in [0, 1]")
    return LabelledText(text, float(toxicity), group, context)


def _pair(row: dict[str, Any], where: str) -> Pair:
    neutral = row.get("neutral")
    neutral = [neutral] if isinstance(neutral, str) else neutral
    if not isinstance(neutral, list):
        raise InputError(f"{where}: 'toxic' needs 'neutral', a text or a list of texts")
    if not all(isinstance(text, str) and text.strip() for text in (row["toxic"], *neutral)):
        raise InputError(f"{where}: 'toxic' or 'neutral' holds an empty text")
    return Pair(row["toxic"], tuple(neutral))
