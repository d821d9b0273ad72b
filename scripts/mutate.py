"""Mutation testing of the gates: changes one thing in a file, and runs the tests of the file.

    python scripts/mutate.py [--count 150] [--seed 0] [--only src/tide/runtime/search.py]

A mutant is a copy of the checkout with one comparison, condition, `raise` or returned bool changed.
It survives if the tests of its file still pass: then a test is missing, or the change makes no
difference, which `scripts/mutants.json` explains. Exits with 1 if a survivor is not explained in
that file. A mutant takes about as long as its tests, some seconds to a minute.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parents[1]
EXPLAINED = ROOT / "scripts" / "mutants.json"
# The tests of each file that decides whether a text is sent, a score is valid, a record is kept or
# a figure is right.
GATES = {
    "src/tide/core/strings.py": ["tests/core/test_strings.py", "tests/server/test_guardrail.py"],
    "src/tide/engines/openai/streams.py": ["tests/engines/openai"],
    "src/tide/core/text.py": ["tests/core", "tests/runtime"],
    "src/tide/scorers/scoring.py": ["tests/scorers/test_scoring.py", "tests/runtime"],
    "src/tide/runtime/search.py": ["tests/runtime"],
    "src/tide/search/base.py": ["tests/search"],
    "src/tide/search/tide.py": ["tests/search"],
    "src/tide/runtime/rewind.py": ["tests/runtime"],
    "src/tide/runtime/draw.py": ["tests/runtime"],
    "src/tide/scorers/wrappers/base.py": ["tests/scorers/wrappers"],
    "src/tide/runtime/watch.py": ["tests/runtime"],
    "src/tide/scorers/base.py": ["tests/scorers/test_base.py", "tests/runtime"],
    "src/tide/data/jsonl.py": ["tests/data"],
    "src/tide/data/records.py": ["tests/data", "tests/evaluation/test_metrics.py"],
    "src/tide/data/record_files.py": ["tests/data"],
    "src/tide/evaluation/metrics.py": ["tests/evaluation/test_metrics.py"],
    "src/tide/evaluation/significance.py": ["tests/evaluation/test_significance.py"],
    "src/tide/server/gate.py": ["tests/server/test_gate.py", "tests/server/test_malformed.py"],
    "src/tide/server/generation.py": [
        "tests/server/test_generation.py", "tests/server/test_streams.py",
        "tests/server/test_schemas.py", "tests/server/test_gate.py",
    ],
    "src/tide/core/sanitize.py": ["tests/core/test_sanitize.py"],
    "src/tide/core/validation.py": ["tests/core", "tests/data"],
}  # fmt: skip
_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
# Timeout: a multiple of the time that the unchanged tests take, and its minimum in seconds.
_PATIENCE, _LEAST = 4, 60.0


@dataclass(frozen=True)
class Mutant:
    """One change of `file`. number, line: position and text of the line. change: a description.

    place, which: index of the node in the tree, and of the change among the node's changes.
    """

    file: str
    number: int
    line: str
    change: str
    place: int
    which: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.line, self.change

    def of(self, source: str) -> str:
        """Apply the change to `source`."""
        tree = ast.parse(source)
        node = next(one for number, one in enumerate(ast.walk(tree)) if number == self.place)
        if isinstance(node, ast.Raise):
            tree = _WithoutRaise(node).visit(tree)
        else:
            _change(node, self.which)
        return ast.unparse(ast.fix_missing_locations(tree))


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Yield every possible single change of `source`."""
    tree, lines = ast.parse(source), source.splitlines()
    for place, node in enumerate(ast.walk(tree)):
        for which, change in enumerate(_changes(node)):
            number = getattr(node, "lineno", 1)
            yield Mutant(file, number, lines[number - 1].strip(), change, place, which)


def _changes(node: ast.AST) -> list[str]:
    """Describe the possible changes of a node; `_change` applies a change by its index."""
    found: list[str] = []
    if isinstance(node, ast.Compare):
        kinds = [(type(one), _COMPARISONS[type(one)]) for one in node.ops]
        found = [f"{a.__name__} {i} becomes {b.__name__}" for i, (a, b) in enumerate(kinds)]
    elif isinstance(node, ast.BoolOp):
        found = ["and becomes or" if isinstance(node.op, ast.And) else "or becomes and"]
    elif isinstance(node, ast.If | ast.IfExp) and not _is_for_types(node.test):
        found = ["the condition is negated"]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found = ["not is dropped"]
    elif isinstance(node, ast.Raise):
        found = ["nothing is raised"]
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Constant):
        found = ["the opposite is returned"] if isinstance(node.value.value, bool) else []
    return found


def _change(node: ast.AST, which: int) -> None:
    if isinstance(node, ast.Compare):
        node.ops[which] = _COMPARISONS[type(node.ops[which])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()  # +bool is 0 or 1, with the same truth
    elif isinstance(node, ast.Return):
        assert isinstance(node.value, ast.Constant)
        node.value = ast.Constant(not node.value.value)


class _WithoutRaise(ast.NodeTransformer):
    """Replaces one `raise` by `pass`."""

    def __init__(self, one: ast.Raise) -> None:
        self._one = one

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return ast.Pass() if node is self._one else node


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def passes(checkout: Path, tests: list[str], seconds: float | None) -> bool:
    """Run the tests; return whether they pass within the time limit."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, check=False,
            timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main(
    count: Annotated[int, typer.Option(help="Maximum number of mutants, drawn at random.")] = 150,
    seed: int = 0,
    only: Annotated[list[str] | None, typer.Option(help="Files; all gates by default.")] = None,
) -> None:
    console = Console()
    chosen = only or list(GATES)
    if unknown := set(chosen) - set(GATES):
        raise SystemExit(f"--only: unknown file {min(unknown)}; known: {', '.join(GATES)}")
    drawn = [one for file in chosen for one in mutants(file, (ROOT / file).read_text("utf-8"))]
    total = len(drawn)
    random.Random(seed).shuffle(drawn)
    drawn = sorted(drawn[:count], key=lambda one: (one.file, one.number))
    explained = {
        (one["file"], one["line"], one["change"])
        for one in json.loads(EXPLAINED.read_text("utf-8"))
    }
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / ROOT.name
        tracked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, tracked.split("\0")):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, checkout / name)
        shared = ROOT.parent / "shared"
        if shared.is_dir():
            (checkout.parent / "shared").symlink_to(shared)
        patience: dict[str, float] = {}
        for file in track(dict.fromkeys(one.file for one in drawn), "unchanged tests"):
            began = time.monotonic()
            if not passes(checkout, GATES[file], None):
                raise SystemExit(f"{file}: its tests fail without any change")
            patience[file] = max(_LEAST, _PATIENCE * (time.monotonic() - began))
        survivors = []
        for one in track(drawn, f"{len(drawn)} of {total} mutants"):
            place = checkout / one.file
            source = place.read_text("utf-8")
            place.write_text(one.of(source), "utf-8")
            if passes(checkout, GATES[one.file], patience[one.file]):
                survivors.append(one)
                console.print(f"survived: {one.file}:{one.number}: {one.change}: {one.line}")
            place.write_text(source, "utf-8")
    new = [one for one in survivors if one.key not in explained]
    console.print(
        f"{len(drawn) - len(survivors)} of {len(drawn)} mutants were noticed; of the others "
        f"{len(survivors) - len(new)} are explained in {EXPLAINED.name}"
    )
    raise SystemExit(1 if new else 0)


if __name__ == "__main__":
    typer.run(main)
