"""The gates that SECURITY.md names exist."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest

import tide

PACKAGE = Path(tide.__file__).parent
PAGE = Path(__file__).parent.parent / "SECURITY.md"


def gates() -> list[str]:
    """The inline code in the second column of the table of gates."""
    table = PAGE.read_text().partition("| from outside | gate |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    return [gate for row in rows for gate in re.findall("`([^`]+)`", row[1])]


def test_each_row_names_its_gate() -> None:
    assert len(gates()) > 10
    rows = PAGE.read_text().partition("| from outside | gate |")[2].partition("\n\n")[0]
    assert all("`" in line.split(" | ")[1] for line in rows.splitlines()[2:])


@pytest.mark.parametrize("gate", gates())
def test_a_gate_exists(gate: str) -> None:
    file, _, names = gate.partition(": ")
    path = PACKAGE / file
    assert path.is_file()
    if path.suffix != ".py":
        assert all(f"function {name}(" in path.read_text() for name in names.split(", "))
        return
    module = importlib.import_module("tide." + file.removesuffix(".py").replace("/", "."))
    for name in filter(None, names.split(", ")):
        attrgetter(name)(module)
