"""The pages as data: their fenced blocks, the commands in them, and the links."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# Commands and examples of PAGES run; for OTHERS only options and links are checked.
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
OTHERS = [REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "benchmarks" / "RESULTS.md"]

_BLOCK = re.compile(
    r"^(?:<!-- (?:not run: (?P<reason>[^\n]+)|saved as: (?P<file>[^\n]+)) -->\n)?"
    r"```(?P<language>sh|python|json)\n(?P<text>.*?)^```$",
    flags=re.M | re.S,
)
# Bash expands each command as usual, finds no such program, and passes the words to this handler.
_RECORDER = """set -u
command_not_found_handle() { printf '%s\\0' "$#" "$@" >> "$RECORDED"; }
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of `sh` or `python`.

    reason: why it is not run, if the page says so. file: name under which the page saves it.
    """

    page: Path
    line: int
    language: str
    text: str
    reason: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}, line {self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of shell, Python and JSON of a page, in order."""
    content = page.read_text(encoding="utf-8")
    assert len(re.findall("^```", content, flags=re.M)) % 2 == 0, f"{page}: a block has no end"
    return [
        Block(page, content.count("\n", 0, match.start("language")) + 1, **match.groupdict())
        for match in _BLOCK.finditer(content)
    ]


def commands(block: Block, folder: Path) -> list[list[str]]:
    """The commands of a shell block as bash expands them in `folder`; none of them is run."""
    recorded = folder.parent / "recorded"
    recorded.write_bytes(b"")
    subprocess.run(
        ["/bin/bash", "-c", f"{_RECORDER}{block.text}wait"],
        cwd=folder,
        env={"PATH": "/nowhere", "RECORDED": str(recorded)},
        check=True,
    )
    words = iter(recorded.read_text(encoding="utf-8").split("\0")[:-1])
    return [[next(words) for _ in range(int(count))] for count in words]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def spans(page: Path) -> list[str]:
    """The inline `code` in the sentences and tables of a page."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


@dataclass(frozen=True)
class Claim:
    """A row of the table of the paper's claims. commands: the inline code of its second column."""

    name: str
    commands: list[str]
    output: str
    verdict: str


def claims(page: Path, heading: str) -> list[Claim]:
    """The rows of the first table after a heading: claim, command, output, verdict."""
    section = page.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    lines = section.replace("\\|", "|").splitlines()
    _, *rows = [line[2:-2].split(" | ") for line in lines if line.startswith("| ")]
    return [
        Claim(name, re.findall(r"`((?:tide|python) [^`]+)`", how), output, verdict)
        for name, how, output, verdict in rows
    ]


def links(page: Path) -> list[str]:
    """The targets inside of the repository to which links and pictures of a page lead."""
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if "://" not in t]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
