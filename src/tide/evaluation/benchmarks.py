"""Loads benchmarks: RealToxicityPrompts-challenging, AttaQ, BOLD, `dialogues`, or any file.

They are read from a local file (in `$TIDE_DATA` or `data/`, or in the subfolders `benchmarks` and
`corpus`). `dialogues` consists of 300 provoking comments to answer, held out from the bundled chat
model.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tide.core.errors import InputError, unknown
from tide.core.sanitize import logger
from tide.data.hub import SOURCES, Source
from tide.data.texts import Row, read_rows

_LOG = logger(__name__)
# The first characters of the SHA-256 of each comment of `dialogues`, in their order. A fixed list,
# since the choice of a scorer would change with the scorer.
_DIALOGUES = Path(__file__).with_name("dialogues.txt")
_DIGEST_LENGTH = 12


@dataclass(frozen=True)
class Benchmark:
    """Prompts with their ids. source: the file of the prompts."""

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


_DIALOGUES_FILE = "dialogues.jsonl.gz"
BENCHMARKS: dict[str, Source | None] = {
    **{name: SOURCES[name] for name in ("rtp", "attaq", "bold")},
    "dialogues": None,  # on no hub
}

# Suites that their authors publish as files: the fields of the prompt and of its group.
SUITES: dict[str, tuple[str, str | None]] = {
    "xstest": ("prompt", "label"),
    "or-bench": ("prompt", "category"),
    "toxigen": ("prompt", "group"),
    "rtp-lx": ("Prompt", None),
    "polyglo": ("prompt", None),
}


def read_dialogues(path: Path) -> list[Row]:
    """Read the comments of `dialogues`, in their order, from a file of dialogues.

    A comment that several dialogues share has the id of the first of them. Raises InputError if a
    comment is missing.
    """
    rows: dict[str, Row] = {}
    for row in read_rows(path, field="context", group="source", skip_empty=True):
        digest = hashlib.sha256(row.text.encode()).hexdigest()[:_DIGEST_LENGTH]
        rows.setdefault(digest, row)
    chosen = _DIALOGUES.read_text().split()
    if missing := [digest for digest in chosen if digest not in rows]:
        raise InputError(f"{path}: lacks {len(missing)} of the {len(chosen)} comments of dialogues")
    return [rows[digest] for digest in chosen]


def load_benchmark(
    name: str, *, field: str = "prompt", limit: int | None = None, chats: bool = False
) -> Benchmark:
    """Load the first `limit` prompts of a benchmark by name or path (.jsonl, .csv, .txt, or .gz).

    A name may select a range, counted from 1: `rtp:201-1199`, `rtp:-200`, `rtp:601-`. The name of a
    suite is followed by the path of its published file: `xstest:xstest_prompts.csv`.
    Empty prompts are skipped in known benchmarks (BOLD has five) and refused in a file.
    chats: passed to `read_rows` for a file.
    Raises InputError for an unknown name, and for a missing, unreadable or empty file.
    """
    known, _, span = name.partition(":")
    if known in SUITES:
        prompt, group = SUITES[known]
        if not span:
            raise InputError(f"{known}: name its published file as well, as in {known}:FILE")
        rows = read_rows(Path(span), field=prompt, group=group, limit=limit, skip_empty=True)
        return Benchmark(known, Path(span).name, rows)
    if span and known in BENCHMARKS:
        whole = load_benchmark(known)
        rows = [whole.rows[number - 1] for number in places(name, span, len(whole.rows))]
        return replace(whole, name=name, rows=rows[:limit])
    if name not in BENCHMARKS:
        path = Path(name)
        if not path.exists() and not path.suffix:
            raise InputError(
                f"{unknown(name, {**BENCHMARKS, **SUITES}, 'benchmark')}; or pass a file's path"
            )
        stem = path.name.removesuffix(".gz").rpartition(".")[0]
        return Benchmark(stem, path.name, read_rows(path, field=field, limit=limit, chats=chats))
    wanted = BENCHMARKS[name]
    file_name = wanted.file if wanted else _DIALOGUES_FILE
    roots = filter(None, [os.environ.get("TIDE_DATA"), "data"])
    for folder in (Path(root, room) for root in roots for room in ("", "benchmarks", "corpus")):
        file = folder / file_name
        if not file.is_file():
            continue
        if wanted is None:
            return Benchmark(name, file.name, read_dialogues(file)[:limit])
        rows = read_rows(file, group=wanted.group, limit=limit, skip_empty=True)
        return Benchmark(name, file.name, rows)
    fetch = f"run `tide data get {name}`, or " if wanted else ""
    raise InputError(
        f"{file_name} not found: {fetch}put it into a folder and set TIDE_DATA to that folder"
    )


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
        if benchmark.source == _DIALOGUES_FILE and not chats:
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
