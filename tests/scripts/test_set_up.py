"""`scripts/set_up.py`, with which the Makefile installs: which PyTorch it asks pip for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.loading import load_script

set_up = load_script("scripts/set_up.py")


@pytest.mark.parametrize(
    ("asked", "platform", "has_gpu", "expected"),
    [
        ("auto", "linux", False, True),
        ("auto", "linux", True, False),
        ("auto", "darwin", False, False),
        ("cpu", "linux", True, True),
        ("cuda", "linux", False, False),
    ],
)
def test_set_up_chooses_the_cpu_build(
    asked: str, platform: str, has_gpu: bool, expected: bool, tmp_path: Path
) -> None:
    assert set_up.wants_cpu(asked, platform, has_gpu) is expected
    (tmp_path / "nvidiactl").touch()  # GPUs are found by their devices
    assert not set_up.gpu(tmp_path)
    (tmp_path / "kfd").touch()
    assert set_up.gpu(tmp_path)
