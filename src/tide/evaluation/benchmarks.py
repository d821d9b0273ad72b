"""Loads benchmarks: RealToxicityPrompts-challenging, AttaQ, BOLD, `dialogues`, or any file.

The first three are read from a local file (in `$TIDE_DATA` or `data/`, or in the subfolders
`benchmarks` and `corpus`), or else from the Hugging Face hub (extra `hub`). `dialogues` consists of
comments to answer, held out from the bundled chat model; it is read only from a local file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, MissingDependencyError
from tide.core.sanitize import logger
from tide.core.validation import unknown
from tide.data.hub import SOURCES, Source, read
from tide.data.prompts import Row, read_rows
from tide.scorers.pocket import PocketScorer

_LOG = logger(__name__)
# One in `_HELD_OUT` dialogue contexts is held out. `dialogues` is the first `_COUNT` toxic ones.
_HELD_OUT, _COUNT = 8, 300


@dataclass(frozen=True)
class Benchmark:
    """Prompts with their ids. source: the file or hub dataset of the prompts."""

    name: str
    source: str
    rows: list[Row]

    @property
    def fingerprint(self) -> str:
        """A digest of all ids and prompts."""
        digest = hashlib.sha256()
        for row in self.rows:
            prompt = row.chat.model_dump_json() if row.chat else row.text
            digest.update(f"{row.id!r}\0{prompt}\0".encode())
        return digest.hexdigest()[:12]

    @property
    def config(self) -> dict[str, Any]:
        """The entry of the benchmark in a run's configuration."""
        return {
            "name": self.name,
            "source": self.source,
            "prompts": len(self.rows),
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class _LocalOnly:
    """A benchmark in a local file. field: name of the prompt field. part: slice of `provoking`."""

    file: str
    group: str
    field: str
    part: slice


BENCHMARKS: dict[str, Source | _LocalOnly] = {
    **{name: SOURCES[name] for name in ("rtp", "attaq", "bold")},
    "dialogues": _LocalOnly("dialogues.jsonl.gz", "source", "context", slice(_COUNT)),
    "dialogues-dev": _LocalOnly("dialogues.jsonl.gz", "source", "context", slice(_COUNT, None)),
}


def is_held_out(context: str) -> bool:
    return _hash(context) % _HELD_OUT == 0


def provoking(rows: Iterable[Row]) -> list[Row]:
    """Return the held-out contexts that the pocket scorer calls toxic, ordered by hash.

    A context that several dialogues share appears once, under its first id. The first 300
    contexts are `dialogues`; the other contexts are `dialogues-dev`, for choosing settings.
    """
    first: dict[str, Row] = {}
    for row in rows:
        if is_held_out(row.text):
            first.setdefault(row.text, row)
    ordered = sorted(first.values(), key=lambda row: _hash(row.text))
    scores = PocketScorer().score([row.text for row in ordered])
    return [row for row, score in zip(ordered, scores, strict=True) if score >= 0.5]


def _hash(context: str) -> int:
    return int(hashlib.sha256(context.encode()).hexdigest(), 16)


def load_benchmark(
    name: str, *, field: str = "prompt", limit: int | None = None, chats: bool = False
) -> Benchmark:
    """Load the first `limit` prompts of a benchmark by name or path (.jsonl, .csv, .txt, or .gz).

    A name may select a range, counted from 1: `rtp:201-1199`, `rtp:-200`, `rtp:601-`.
    Empty prompts are skipped in known benchmarks (BOLD has five) and refused in a file.
    chats: passed to `read_rows` for a file.
    Raises InputError for an unknown name, an unreadable or empty file, or a hub that cannot be
    reached, and MissingDependencyError if the hub is needed and `datasets` is not installed.
    """
    known, _, span = name.partition(":")
    if span and known in BENCHMARKS:
        whole = load_benchmark(known)
        rows = [whole.rows[number - 1] for number in places(name, span, len(whole.rows))]
        return replace(whole, name=name, rows=rows[:limit])
    if name not in BENCHMARKS:
        path = Path(name)
        if not path.exists() and not path.suffix:
            raise InputError(f"{unknown(name, BENCHMARKS, 'benchmark')}; or pass a file's path")
        stem = path.name.removesuffix(".gz").rpartition(".")[0]
        return Benchmark(stem, path.name, read_rows(path, field=field, limit=limit, chats=chats))
    wanted = BENCHMARKS[name]
    roots = filter(None, [os.environ.get("TIDE_DATA"), "data"])
    for folder in (Path(root, room) for root in roots for room in ("", "benchmarks", "corpus")):
        file = folder / wanted.file
        if file.is_file() and isinstance(wanted, _LocalOnly):
            rows = read_rows(file, field=wanted.field, group=wanted.group, skip_empty=True)
            return Benchmark(name, file.name, provoking(rows)[wanted.part][:limit])
        if file.is_file():
            rows = read_rows(file, group=wanted.group, limit=limit, skip_empty=True)
            return Benchmark(name, file.name, rows)
    way_out = f"put {wanted.file} into a folder and set TIDE_DATA to that folder"
    if isinstance(wanted, _LocalOnly):
        raise InputError(f"{wanted.file} not found: {way_out}")
    fetched = (
        Row(row["id"], row["prompt"], row[wanted.group] if wanted.group else None)
        for row in read(wanted)
        if row["prompt"].strip()
    )
    try:
        return Benchmark(name, wanted.hub, list(islice(fetched, limit)))
    except (InputError, MissingDependencyError) as error:
        raise type(error)(f"{wanted.file} not found, nor fetched ({error}); {way_out}") from error


def open_benchmark(
    source: str | Path | Benchmark | Sequence[str], field: str, limit: int | None, chats: bool
) -> Benchmark:
    """Open a benchmark by name or path (`load_benchmark`); a list of prompts becomes a benchmark.

    chats: turn every prompt into a chat. Logs a warning if `dialogues` is loaded as plain text.
    Raises InputError for a limit below 1, and the errors of `load_benchmark`.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit: must be at least 1 (got {limit})")
    if isinstance(source, Benchmark):
        benchmark = source
    elif isinstance(source, str | Path):
        benchmark = load_benchmark(str(source), field=field, limit=limit, chats=chats)
        if benchmark.source == BENCHMARKS["dialogues"].file and not chats:
            _LOG.warning(
                "%s: the prompts are comments to answer, and a model will continue them as text; "
                "use --chat (chat=True) to make a chat model answer them",
                benchmark.name,
            )
    else:
        benchmark = Benchmark("prompts", "given", [Row(*row) for row in enumerate(source)])
    rows = benchmark.rows[:limit]
    return replace(benchmark, rows=[row.as_chat() for row in rows] if chats else rows)


def places(named: str, text: str, count: int) -> range:
    """Return the positions (from 1) that a range selects of `count`: `201-1199`, `-200` or `601-`.

    named: prefix of the error. Raises InputError for an invalid range or a position past `count`.
    """
    match = re.fullmatch(r"(\d{1,9})?-(\d{1,9})?", text, re.ASCII)
    low, high = (int(match[1] or 1), int(match[2] or count)) if match else (0, 0)
    if not 1 <= low <= high <= count:
        raise InputError(f"{named}: expected a range within 1-{count} (got {text!r})")
    return range(low, high + 1)
