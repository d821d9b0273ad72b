"""Benchmarks that start a process of their own run, in small."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.scripts.loading import ROOT

pytestmark = pytest.mark.slow


def printed(script: str, *options: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_gpu_prints_a_section() -> None:
    """With a small model on the device there is."""
    options = ["--shapes", "small", "--prompts", "4", "--repeats", "1", "--no-tests"]
    said = printed("gpu.py", *options)
    section = said[said.index("## On ") :]
    assert "### small: 0.1 million weights" in section
    ways = [line for line in section.splitlines() if line[:4] in {f"| {c} " for c in "abcde"}]
    assert len(ways) == 5
    assert sum(line.count("|") == 6 for line in section.splitlines()) == 2 + 4


def test_mixed_requests_over_five_policies_have_the_answers_that_they_have_to_have() -> None:
    """A few of the ten thousand that `benchmarks/mixed.py` sends."""
    kinds, wrong, unseen = printed("mixed.py", "--requests", "200").splitlines()[-3:]
    assert (wrong, unseen) == ("wrong: none", "not seen: none")
    for kind in ("call: 200", "stream: 200", "chat: 200", "wrong key: 401", "other policy: 403"):
        assert kind in kinds
    assert "enforce: repaired" in kinds
    assert "monitor: own text" in kinds
