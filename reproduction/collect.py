"""Arrange the authors' recorded completions in the layout that `paper.py` reads.

    git clone https://github.com/baturaysaglam/instant-detox
    python reproduction/collect.py instant-detox data/paper

Writes data/paper/recorded/MODEL/METHOD.json.gz for every file under `responses/` of the checkout:
`tide`, `base` for the model itself, and the other systems by the names of their folders.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated

import typer

from tide.core.errors import InputError, TideError
from tide.data.files import replaced


def collect(checkout: Path, folder: Path) -> list[Path]:
    """Write the files; return their paths. Raises InputError for a checkout without responses."""
    responses = checkout / "responses"
    sources = {(file.parent.name, "tide"): file for file in responses.glob("tide/*/rtp.json")}
    for file in responses.glob("baselines/*/temp=0.1-K=3/rtp.json"):
        sources[file.parent.parent.name, "base"] = file
    for file in responses.glob("baselines/*/*/temp=0.1-K=3/rtp.json"):
        model = file.parent.parent
        sources[model.name, model.parent.name] = file
    if not sources:
        raise InputError(f"{responses}: no files tide/<model>/rtp.json; is this instant-detox?")
    written = []
    for (model, method), file in sorted(sources.items()):
        path = folder / "recorded" / model / f"{method}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as out:
            out.write(gzip.compress(file.read_bytes(), mtime=0))
        written.append(path)
    return written


def main(
    checkout: Annotated[Path, typer.Argument(help="A checkout of instant-detox.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path("data/paper"),
) -> None:
    written = collect(checkout, folder)
    models = sorted({path.parent.name for path in written})
    print(f"{len(written)} files of {', '.join(models)} in {folder / 'recorded'}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except TideError as error:
        raise SystemExit(f"error: {error}") from None
