"""Texts with labels, or with recorded scores of another scorer: what scorers are compared on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tide.data.prompts import open_text
from tide.errors import InputError


@dataclass(frozen=True)
class LabelledText:
    """toxicity: in [0, 1]; the share of raters who called it toxic, or a recorded score."""

    text: str
    toxicity: float
    group: str


def read_labelled(paths: Iterable[Path], *, by: str | None = None) -> list[LabelledText]:
    """All labelled texts of jsonl or json files (a list of objects), plain or gzipped.

    An object is a labelled text (`text`, `toxicity`) or a record of a run (`completions`,
    `toxicity_scores`), which holds several. by: the field that names a row's group, or "file".
    Raises InputError, with the row's number, for a row that is neither.
    """
    rows = []
    for path in paths:
        for number, row in _objects(path):
            place = f"{path}, row {number}"
            group = path.name if by == "file" else str(row.get(by, "")) if by else ""
            rows += [LabelledText(*pair, group) for pair in _pairs(row, place)]
    return rows


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    kind = [suffix for suffix in path.suffixes if suffix != ".gz"][-1:]
    if kind not in ([".json"], [".jsonl"]):
        raise InputError(f"{path}: unknown kind of file; use .jsonl or .json (or these .gz)")
    try:
        with open_text(path) as file:
            lines = map(json.loads, filter(str.strip, file))
            rows = lines if kind == [".jsonl"] else json.load(file)
            for number, row in enumerate(rows, start=1):
                if not isinstance(row, dict):
                    raise InputError(f"{path}, row {number}: not a JSON object")
                yield number, row
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error.msg}") from None


def _pairs(row: dict[str, Any], place: str) -> list[tuple[str, float]]:
    if "completions" in row:
        texts, scores = row["completions"], row.get("toxicity_scores")
        if not (isinstance(texts, list) and isinstance(scores, list) and len(texts) == len(scores)):
            raise InputError(f"{place}: needs as many 'toxicity_scores' as 'completions'")
    else:
        texts, scores = [row.get("text")], [row.get("toxicity")]
    for text, score in zip(texts, scores, strict=True):
        if not isinstance(text, str):
            raise InputError(f"{place}: no text; needs 'text' and 'toxicity', or 'completions'")
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            raise InputError(f"{place}: its toxicity is no number in [0, 1] (got {score!r})")
    return list(zip(texts, map(float, scores), strict=True))
