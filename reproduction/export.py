"""Write a run in the published record format: a JSON list with one object per prompt.

python reproduction/export.py runs/rtp-pocket/tide tide.json.gz
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Annotated

import typer

from tide import TideError
from tide.data.records import to_published
from tide.evaluation import Run, read_run


def export(run: Run, file: Path) -> None:
    """Write `run` to `file`, gzipped if the name ends in `.gz`."""
    rows = [to_published(record) for record in run.records]
    text = json.dumps(rows, ensure_ascii=False).encode()
    file.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


def main(
    run: Annotated[Path, typer.Argument(help="A run: a folder, or a .jsonl file.")],
    file: Annotated[Path, typer.Argument(help="File to write: .json or .json.gz.")],
) -> None:
    export(read_run(run), file)


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
