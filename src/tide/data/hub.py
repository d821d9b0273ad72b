"""Downloads datasets of the Hugging Face hub as the files that `tide eval` and `tide fit` read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, TideError, first_line, require, unknown
from tide.data.files import replaced

Rows = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """A dataset of the hub. file: name of the local file.

    rows: converts the dataset's rows to rows of the file. group: the field by which a benchmark
    groups its prompts. split: the only split to read; by default all splits are read.
    """

    file: str
    hub: str
    rows: Callable[[Rows], Rows]
    group: str | None = None
    split: str | None = None


def _paradetox(rows: Rows) -> Rows:
    neutral: dict[str, list[str]] = {}
    for row in rows:
        neutral.setdefault(row["en_toxic_comment"], []).append(row["en_neutral_comment"])
    return ({"toxic": toxic, "neutral": texts} for toxic, texts in neutral.items())


SOURCES = {
    "rtp": Source(
        "rtp_challenging.jsonl",
        "allenai/real-toxicity-prompts",
        lambda rows: ({"prompt": row["prompt"]["text"]} for row in rows if row["challenging"]),
    ),
    "attaq": Source(
        "attaq.jsonl",
        "ibm-research/AttaQ",
        lambda rows: ({"prompt": row["input"], "label": row["label"]} for row in rows),
        group="label",
    ),
    "bold": Source(
        "bold.jsonl.gz",
        "AmazonScience/bold",
        lambda rows: ({"prompt": p, "domain": r["domain"]} for r in rows for p in r["prompts"]),
        group="domain",
    ),
    # 97,320 comments; the training split has 1.8 million
    "civil-comments": Source(
        "civil_comments.jsonl.gz",
        "google/civil_comments",
        lambda rows: (
            {"text": text, "toxicity": round(float(row["toxicity"]), 4), "source": "civil_comments"}
            for row in rows
            if (text := row["text"]).strip()
        ),
        split="validation",
    ),
    "paradetox": Source("paradetox_pairs.jsonl.gz", "s-nlp/paradetox", _paradetox),
}


def _read(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the rows of the source's file, numbered by `id`.

    Raises InputError if the hub cannot be reached or the dataset has another format, and
    MissingDependencyError if `datasets` is not installed.
    """
    load = require("datasets", "hub").load_dataset
    try:
        if source.split is None:
            splits = load(source.hub)
            rows: Rows = (row for name in sorted(splits) for row in splits[name])
        else:  # streamed; otherwise all splits would be downloaded
            rows = load(source.hub, split=source.split, streaming=True)
        for number, row in enumerate(source.rows(rows)):
            yield {"id": number, **row}
    except TideError:
        raise
    except Exception as error:  # the library's errors have no common base class
        raise InputError(
            f"{source.hub}: cannot be loaded from the hub ({first_line(error)})"
        ) from error


def get(name: str, folder: Path, *, overwrite: bool = False) -> Path:
    """Write a dataset to its file in `folder` atomically; keep an existing file.

    Raises InputError for an unknown name, and the errors of reading.
    """
    if name not in SOURCES:
        raise InputError(unknown(name, SOURCES, "dataset"))
    source = SOURCES[name]
    path = folder / source.file
    if path.exists() and not overwrite:
        return path
    with replaced(path) as file:
        packed = path.suffix == ".gz"
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if packed else nullcontext(file) as to:
            for row in _read(source):
                to.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return path
