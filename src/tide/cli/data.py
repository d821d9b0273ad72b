"""`tide data`: the public datasets that benchmarks and fits read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tide.cli import options
from tide.cli.display import ERRORS
from tide.data.hub import SOURCES
from tide.data.hub import get as get_one

app = typer.Typer(help="Datasets for `tide eval` and `tide fit`.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    pass


@app.command("get", cls=options.Command)
def get(
    names: Annotated[list[str], typer.Argument(help=f"One or several of {', '.join(SOURCES)}.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", envvar="TIDE_DATA", help="Folder to write to.")
    ] = Path("data"),
    overwrite: options.Overwrite = False,
) -> None:
    """Write NAMES from the Hugging Face hub to files (needs the extra hub).

    rtp, attaq and bold are benchmarks: `tide eval rtp` finds them in the folder data, or in the one
    that TIDE_DATA names. civil-comments and paradetox are labelled texts for `tide fit --data`.
    """
    for name in names:
        ERRORS.print(f"{name}: {get_one(name, out, overwrite=overwrite)}")
