"""`python -m benchmarks.streams URL`: runs the cases against URL, and prints a table."""

from __future__ import annotations

import asyncio
import csv
import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from benchmarks.streams.cases import CASES, GITHUB, Case, Kit, said
from benchmarks.streams.server import ScriptedServer

console = Console()
STARTING = 600.0


@dataclass(frozen=True)
class Row:
    """state: holds, misses, "cannot be seen" or "not asked"."""

    case: str
    title: str
    state: str
    note: str
    threads: tuple[str, ...]


async def check(kit: Kit, cases: list[Case], guards: bool) -> list[Row]:
    """Run the cases. guards: whether the address shall keep failing text back."""
    if guards:  # does it ask our scorer?
        await kit.ask(said(" Hello", " there"))
        kit.scores = bool(kit.server.scored)
    rows = []
    for case in track(cases, "cases", console=Console(stderr=True), transient=True):
        asked = {"guard": guards, "exact": not guards, "wire": True}[case.kind]
        state, note = "not asked", ""
        if asked:
            holds, note = await case.check(kit)
            state = {True: "holds", False: "misses", None: "cannot be seen"}[holds]
        rows.append(Row(case.name, case.title, state, note, case.threads))
    await kit.http.aclose()
    return rows


@contextmanager
def started(command: str, url: str, upstream: str) -> Iterator[int]:
    """Start the command of the address under test; yields its process id."""
    with subprocess.Popen(shlex.split(command.format(upstream=upstream))) as process:
        try:
            until = time.monotonic() + STARTING
            while True:
                try:
                    httpx.get(f"{url.removesuffix('/v1')}/v1/models", timeout=5.0)
                    break
                except httpx.HTTPError:
                    if process.poll() is not None or time.monotonic() > until:
                        raise typer.BadParameter("it did not start", param_hint="--start") from None
                    time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()


def show(rows: list[Row], title: str) -> None:
    table = Table("", "", "", title=title, show_header=False)
    colours = {"holds": "green", "misses": "bold red"}
    for row in rows:
        table.add_row(
            escape(row.title), f"[{colours.get(row.state, 'dim')}]{row.state}[/]", escape(row.note)
        )
    console.print(table)
    for row in rows:
        if row.state == "misses":
            threads = ", ".join(GITHUB + thread for thread in row.threads)
            console.print(f"{row.case}: {row.note}. Met in {threads}", soft_wrap=True)


def save(rows: list[Row], path: Path) -> None:
    """Write the rows as CSV, or as JSON if the file's name ends so."""
    if path.suffix == ".json":
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows({**asdict(row), "threads": " ".join(row.threads)} for row in rows)


def main(
    url: Annotated[str, typer.Argument(help="The address under test.")],
    upstream: Annotated[
        str, typer.Option(help="Where the scripted server and scorer listen, for the address.")
    ] = "127.0.0.1:9400",
    model: str = "scripted",
    key: Annotated[str, typer.Option(help="API key of the address.")] = "none",
    start: Annotated[
        str, typer.Option(help="A command that starts the address; {upstream} is our address.")
    ] = "",
    pid: Annotated[int | None, typer.Option(help="Process, for its processor time.")] = None,
    guards: Annotated[bool, typer.Option(help="It shall keep failing text back.")] = True,
    only: Annotated[list[str] | None, typer.Option(help="Names of cases.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the table, as .json or .csv.")
    ] = None,
) -> None:
    """Check what holds of the streams of a gateway or guardrail with OpenAI's API."""
    cases = [case for case in CASES if not only or case.name in only]
    server = ScriptedServer()
    host, _, port = upstream.rpartition(":")
    with server.listening(host, int(port)):
        kit = Kit(url, server, model, key, pid)
        if start:
            with started(start, url, server.url) as kit.pid:
                rows = asyncio.run(check(kit, cases, guards))
        else:
            rows = asyncio.run(check(kit, cases, guards))
    show(rows, url)
    if out is not None:
        save(rows, out)
    raise typer.Exit(int(any(row.state == "misses" for row in rows)))


if __name__ == "__main__":
    typer.run(main)
