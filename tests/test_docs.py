"""The commands and examples of each page run, in order, in one folder per page.

A block under `<!-- not run: reason -->` needs something that tests lack (a GPU, a download, a key).
For these blocks, and for commands inside of sentences, only the options must exist. A block under
`<!-- saved as: FILE -->` is saved as that file.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import re
from importlib.metadata import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.docs_pages import (
    OTHERS,
    PAGES,
    REPOSITORY,
    Block,
    anchors,
    blocks,
    commands,
    links,
    spans,
)
from tests.docs_world import enter, run_command
from tide.cli.app import app

SECURITY = REPOSITORY / "SECURITY.md"
# Other programs that may occur in blocks that are not run.
_FOREIGN = ("vllm", "git", "cp", "mkdir")


each_page = pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.stem)
each_run_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@pytest.mark.docs
@each_run_page
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = enter(tmp_path, monkeypatch)
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.reason:
            continue
        if block.file:
            (here / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # The blocks of a page share their variables and may await, as in a notebook.
            awaited = eval(compiled(block), names)
            if awaited is not None:
                asyncio.run(awaited)
        elif block.language == "sh":
            for command in commands(block, here):
                print(block, *command)
                run_command(command, block, monkeypatch)


def compiled(block: Block) -> Any:
    return compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@each_run_page
def test_blocks_can_be_read(page: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for block in blocks(page):
        if block.language == "python":
            compiled(block)
        elif block.language == "json":
            json.loads(block.text)
        else:
            for command in commands(block, here):
                check_command(command, str(block))


@each_page
def test_commands_in_sentences_have_their_options(page: Path) -> None:
    for span in spans(page):
        if re.match(r"tide [a-z]+ .*-\w", span) and "..." not in span and "--help" not in span:
            check_command(span.replace("'", "").split(), f"{page.name}: `{span}`", whole=False)


def check_command(command: list[str], where: str, *, whole: bool = True) -> None:
    """A command's program and options must exist. whole: so must its required arguments."""
    program, *arguments = command
    if program == "tide":
        check_options(arguments, where, whole)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.M)
        assert set(arguments) <= set(targets), f"{where}: no such target"
    elif program == "pip":
        named = ",".join(re.findall(r"\[(.+)\]", " ".join(arguments))).split(",")
        known = metadata("tide-detox").get_all("Provides-Extra") or []
        assert set(named) <= {"", *known}, f"{where}: no such extra"
    elif program == "python" and not arguments[0].startswith("-"):
        source = (REPOSITORY / arguments[0]).read_text()
        for option in re.findall(r"(?<=--)[a-z][\w-]*", " ".join(arguments[1:])):
            assert option.replace("-", "_") in source, f"{where}: no option --{option}"
    else:
        assert program in ("python", *_FOREIGN), f"{where}: unknown program {program}"


def check_options(arguments: list[str], where: str, whole: bool) -> None:
    command, context, name = get_command(app), None, "tide"
    try:
        while True:
            context = command.make_context(name, list(arguments), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            rest = [*getattr(context, "_protected_args", []), *context.args]
            name, command, arguments = command.resolve_command(context, rest)
    except Exception as error:
        # Compared by name, since the exceptions may be click's, or those of typer's copy of click.
        if whole or type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            pytest.fail(f"{where}: {' '.join(arguments)}: {error}")


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_everything_in_docs_is_linked() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in [*PAGES, *OTHERS]
        for link in links(page)
    }
    files = {path for path in (REPOSITORY / "docs").rglob("*") if path.is_file()}
    assert files <= linked, sorted(map(str, files - linked))


def gates() -> list[str]:
    """The inline code in the second column of the table of gates; each row names one."""
    table = SECURITY.read_text().partition("| from outside | gate |")[2].partition("\n\n")[0]
    named = [re.findall("`([^`]+)`", row.split(" | ")[1]) for row in table.splitlines()[2:]]
    assert len(named) > 10
    assert all(named)
    return [gate for row in named for gate in row]


@pytest.mark.parametrize("gate", gates())
def test_a_gate_exists(gate: str) -> None:
    file, _, names = gate.partition(": ")
    path = REPOSITORY / "src" / "tide" / file
    assert path.is_file()
    if path.suffix != ".py":
        assert all(f"function {name}(" in path.read_text() for name in names.split(", "))
        return
    module = importlib.import_module("tide." + file.removesuffix(".py").replace("/", "."))
    for name in filter(None, names.split(", ")):
        attrgetter(name)(module)
