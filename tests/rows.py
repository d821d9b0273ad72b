"""Writes files of JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path


def write_rows(path: Path, rows: Sequence[object]) -> Path:
    """Write JSON lines to a .jsonl file, else one JSON value; gzipped if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_lines = ".jsonl" in path.suffixes
    text = "".join(json.dumps(row) + "\n" for row in rows) if is_lines else json.dumps(rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
