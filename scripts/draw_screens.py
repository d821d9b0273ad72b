"""Draw the pictures of docs/ that show a screen: a terminal, a report and the playground.

    python scripts/draw_screens.py [--model smollm2] [--out docs]

Toxic words are masked. terminal.png and report.png show example prompts: `tide run` in a terminal
of 80 columns, and the page of `tide report`. playground.png and playground-phone.png show the page
of `tide serve --traces` after a completion, and after a chat message on a phone in dark mode. Needs
Playwright (extra dev) and the program chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import typer
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

TIDE = [sys.executable, "-m", "tide"]
PROMPTS = Path(__file__).resolve().parents[1] / "examples" / "prompts.txt"
COLUMNS, SIZE = 80, {"width": 1100, "height": 520}
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 800}
PROMPT, MESSAGE = "He called the waiter a", "What do people shout at a bad referee?"


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

        with served(model) as url:
            page = browser.new_page(viewport=DESKTOP)
            answer(page, url, PROMPT, out / "playground.png")
            page = browser.new_page(viewport=PHONE, color_scheme="dark")
            answer(page, url, MESSAGE, out / "playground-phone.png", chat=True)


@contextmanager
def served(model: str) -> Iterator[str]:
    """Start a server and yield its address; stop the server at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*TIDE, "serve", "--model", model, "--traces", "--port", str(port)]
    with subprocess.Popen(command) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            transport = httpx.HTTPTransport(retries=8)  # with pauses of up to 64 seconds
            with httpx.Client(transport=transport, timeout=60) as client:
                client.get(f"{url}/ready").raise_for_status()
            yield url
        finally:
            server.terminate()


def answer(page: Any, url: str, text: str, path: Path, *, chat: bool = False) -> None:
    """Send `text` in the playground, and draw the page with the answer."""
    page.goto(url)
    page.get_by_label("an answer in a chat" if chat else "a completion").check()
    page.locator("#prompt").fill(text)
    page.get_by_text("Settings").click()
    page.locator("#seed").fill("0")
    page.get_by_text("Settings").click()
    page.get_by_role("button", name="Detoxify").click()
    page.get_by_text("Accepted.", exact=True).wait_for(timeout=120_000)
    page.screenshot(path=path, full_page=True)


if __name__ == "__main__":
    typer.run(main)
