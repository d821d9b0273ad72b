"""`scripts/set_up.py`, with which the Makefile installs: which PyTorch it asks pip for."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts.loading import ROOT, load_script


@pytest.fixture
def set_up() -> ModuleType:
    return load_script("scripts/set_up.py")


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
    asked: str, platform: str, has_gpu: bool, expected: bool, set_up: ModuleType, tmp_path: Path
) -> None:
    assert set_up.wants_cpu(asked, platform, has_gpu) is expected
    (tmp_path / "nvidiactl").touch()  # GPUs are found by their devices
    assert not set_up.gpu(tmp_path)
    (tmp_path / "kfd").touch()
    assert set_up.gpu(tmp_path)


def test_set_up_reads_the_pinned_version(set_up: ModuleType) -> None:
    version = set_up.pinned((ROOT / "constraints.txt").read_text())
    assert f"torch=={version}\n" in (ROOT / "constraints.txt").read_text()
    with pytest.raises(SystemExit, match="no line torch==VERSION"):
        set_up.pinned("numpy==2\n")


def run(
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    asked: str = "auto",
    has_build: bool = True,
    is_installed: bool = False,
) -> list[tuple[str, ...]]:
    """What pip is asked for."""
    calls: list[tuple[str, ...]] = []

    def pip(*arguments: str, quietly: bool = False) -> bool:
        calls.append(arguments)
        return has_build or not arguments[-1].startswith("torch==")

    monkeypatch.setattr(set_up, "pip", pip)
    monkeypatch.setattr(set_up, "gpu", lambda: False)
    monkeypatch.setattr(set_up, "installed", lambda: is_installed)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.argv", ["set_up.py", "test"])
    monkeypatch.setenv("TORCH", asked)
    set_up.main()
    return calls


WHOLE = ("--constraint", "constraints.txt", "--editable", ".[test]")


def test_set_up_installs_torch_first(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run(set_up, monkeypatch)
    assert second == WHOLE
    assert first[-3:-1] == ("--extra-index-url", set_up.INDEX)
    assert first[-1].endswith("+cpu")
    assert "--no-deps" in first  # nothing else is looked for there
    assert "--index-url" not in first  # where pip is told to look still counts
    for asked, is_installed in (("cuda", False), ("auto", True)):  # kept as it is
        assert run(set_up, monkeypatch, asked=asked, is_installed=is_installed) == [WHOLE]
    line, *others = capsys.readouterr().out.splitlines()
    assert others == ["installing .[test]: some minutes"] * 2
    assert "PyTorch for the CPU (no GPU found; TORCH=cuda installs the CUDA build)" in line
