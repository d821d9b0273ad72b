"""Draw the pictures of docs/ that show a screen: terminal.png and report.png.

    python scripts/draw_screens.py [--model smollm2] [--out docs]

Both show the example prompts, with toxic words masked: `tide run` in a terminal of 80 columns, and
the page of `tide report`. Needs Playwright (extra dev) and the program chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

TIDE = [sys.executable, "-m", "tide"]
PROMPTS = Path(__file__).resolve().parents[1] / "examples" / "prompts.txt"
COLUMNS, SIZE = 80, {"width": 1100, "height": 520}


def main(model: str = "smollm2", out: Path = Path("docs")) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        few = Path(folder, "prompts.txt")
        few.write_text("".join(PROMPTS.read_text().splitlines(keepends=True)[2:4]))
        same = ["--model", model, "--judges", "sentence"]
        # Makes Rich write as to a terminal; its progress is on stderr.
        terminal = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        said = subprocess.run(
            [*TIDE, "run", "-i", str(few), "--mask", *same],
            env={**os.environ, **terminal}, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        console.print(Text.from_ansi(said))
        svg = console.export_svg(title="tide run --mask, at 80 columns")

        runs = Path(folder, "runs")
        compared = ["--methods", "base,backtrack", "--reference", "none", "--trials", "1"]
        subprocess.run(
            [*TIDE, "eval", str(PROMPTS), *same, *compared, "--out", str(runs)], check=True
        )
        subprocess.run([*TIDE, "report", str(runs), "--out", f"{folder}/report"], check=True)

        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page: Any = browser.new_page(viewport=SIZE)
        page.set_content(svg)
        page.locator("svg").screenshot(path=out / "terminal.png")
        page.goto(Path(folder, "report", "report.html").as_uri())
        page.get_by_role("heading", name="Before and after").evaluate("e => e.scrollIntoView()")
        page.screenshot(path=out / "report.png")


if __name__ == "__main__":
    typer.run(main)
