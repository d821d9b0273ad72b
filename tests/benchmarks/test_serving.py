"""The servers that `benchmarks/serving.py` compares start, and answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pocket.training import write_rows

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving.py"
SERVERS = ["plain", "unscored", "ours"]


@pytest.mark.slow
def test_servers_are_compared(tmp_path: Path) -> None:
    rows = [{"id": number, "prompt": "The weather is", "domain": "a"} for number in range(2)]
    write_rows(tmp_path / "bold.jsonl.gz", rows)
    few = ["--requests", "2", "--clients", "1", "--turns", "1", "--tokens", "4"]
    command = [sys.executable, SCRIPT, "--traffic", "ordinary", *few, "--servers", *SERVERS]
    environment = os.environ | {"TIDE_DATA": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = [
        line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ordinary")
    ]
    assert [cells[2] for cells in table] == SERVERS
    assert all(cells[-1] == "0 |" for cells in table)
