from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs_pages import REPOSITORY


@pytest.mark.slow
def test_mixed_requests_over_five_policies_have_the_answers_that_they_have_to_have() -> None:
    """A few of the ten thousand that `benchmarks/mixed.py` sends."""
    script = REPOSITORY / "benchmarks" / "mixed.py"
    done = subprocess.run(
        [sys.executable, str(script), "--requests", "200"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kinds, wrong, unseen = done.stdout.splitlines()[-3:]
    assert (wrong, unseen) == ("wrong: none", "not seen: none")
    for kind in ("call: 200", "stream: 200", "chat: 200", "wrong key: 401", "other policy: 403"):
        assert kind in kinds
    assert "enforce: repaired" in kinds
    assert "monitor: own text" in kinds
