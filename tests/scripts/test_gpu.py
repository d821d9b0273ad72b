"""The benchmark for GPUs runs, with a small model on the device there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_it_prints_a_section() -> None:
    options = ["--shapes", "small", "--prompts", "4", "--repeats", "1", "--no-tests"]
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    section = ran.stdout[ran.stdout.index("## On ") :]
    assert "### small: 0.1 million weights" in section
    ways = [line for line in section.splitlines() if line[:4] in {f"| {c} " for c in "abcde"}]
    assert len(ways) == 5
    assert sum(line.count("|") == 6 for line in section.splitlines()) == 2 + 4
