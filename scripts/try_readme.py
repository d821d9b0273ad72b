"""Follow the README as a stranger would, in a fresh clone and a new environment.

    python scripts/try_readme.py [--keep FOLDER]

Runs the commands of README.md in a clone of the current commit: first the installation for a CPU,
then each block of shell and of Python. Skips the blocks that the page marks as not run (the server,
and CUDA's installation). Exits with 1 at the first block that fails. Takes some minutes and 1.3 GB,
most of it for the installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.docs_pages import Block, blocks  # noqa: E402

INSTALLATION = "download.pytorch.org/whl/cpu"


def followed(readme: Path) -> list[Block]:
    """Return the blocks to run: the installation for a CPU, then blocks not marked as skipped."""
    found = [one for one in blocks(readme) if not one.reason or INSTALLATION in one.text]
    install = next(one for one in found if INSTALLATION in one.text)
    return [install, *(one for one in found if one is not install)]


def main(
    keep: Annotated[Path | None, typer.Option(help="Clone into this folder, and keep it.")] = None,
) -> None:
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        clone = keep or Path(folder) / "tide"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        subprocess.run([sys.executable, "-m", "venv", str(clone / ".venv")], check=True)
        path = f"{clone / '.venv/bin'}:{os.environ['PATH']}"
        own = {name: value for name, value in os.environ.items() if not name.startswith("TIDE_")}
        for block in followed(clone / "README.md"):
            program = ["bash", "-euc"] if block.language == "sh" else ["python", "-c"]
            console.rule(f"README.md, line {block.line}")
            console.print(block.text, markup=False, highlight=False)
            started = time.monotonic()
            # Use the clone's environment, as if it had been activated.
            done = subprocess.run(
                ["env", f"PATH={path}", *program, block.text], cwd=clone, env=own, check=False
            )
            seconds = time.monotonic() - started
            if done.returncode:
                raise SystemExit(f"README.md, line {block.line}: exits with {done.returncode}")
            console.print(f"({seconds:.0f} s)")


if __name__ == "__main__":
    typer.run(main)
