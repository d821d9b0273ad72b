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
def test_the_build_for_the_cpu_is_for_linux_without_a_gpu(
    asked: str, platform: str, has_gpu: bool, expected: bool, set_up: ModuleType
) -> None:
    assert set_up.wants_cpu(asked, platform, has_gpu) is expected


def test_gpus_are_found_by_their_devices(set_up: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not set_up.gpu(tmp_path)
    for name in ("nvidia0", "kfd"):
        (tmp_path / name).touch()
        assert set_up.gpu(tmp_path)
        (tmp_path / name).unlink()


def test_the_version_is_that_of_the_constraints(set_up: ModuleType) -> None:
    version = set_up.pinned((ROOT / "constraints.txt").read_text())
    assert f"torch=={version}\n" in (ROOT / "constraints.txt").read_text()
    with pytest.raises(SystemExit, match="no line torch==VERSION"):
        set_up.pinned("numpy==2\n")


class Pip:
    """Stands for `pip install`, and remembers."""

    def __init__(self, has_build: bool) -> None:
        self.calls: list[tuple[str, ...]] = []
        self._has_build = has_build

    def __call__(self, *arguments: str, quietly: bool = False) -> bool:
        self.calls.append(arguments)
        return self._has_build or not arguments[-1].startswith("torch==")


def run(
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    *,
    asked: str = "auto",
    has_build: bool = True,
    is_installed: bool = False,
) -> list[tuple[str, ...]]:
    pip = Pip(has_build)
    monkeypatch.setattr(set_up, "pip", pip)
    monkeypatch.setattr(set_up, "gpu", lambda: False)
    monkeypatch.setattr(set_up, "installed", lambda: is_installed)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.argv", ["set_up.py", "test"])
    monkeypatch.setenv("TORCH", asked)
    set_up.main()
    return pip.calls


WHOLE = ("--constraint", "constraints.txt", "--editable", ".[test]")


def test_torch_comes_first_and_alone_from_the_other_index(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = run(set_up, monkeypatch)
    assert second == WHOLE
    assert first[-3:-1] == ("--extra-index-url", set_up.INDEX)
    assert first[-1].endswith("+cpu")
    assert "--no-deps" in first  # nothing else is looked for there
    assert "--index-url" not in first  # where pip is told to look still counts
    (line,) = capsys.readouterr().out.splitlines()
    assert "PyTorch for the CPU (no GPU is here; TORCH=cuda takes CUDA's)" in line


def test_without_that_build_everything_comes_as_pip_is_configured(
    set_up: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(set_up, monkeypatch, has_build=False)[1:] == [WHOLE]
    assert "PyTorch comes from where pip looks" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"TORCH=cpu: torch==.* is neither at"):
        run(set_up, monkeypatch, has_build=False, asked="cpu")


@pytest.mark.parametrize(("asked", "is_installed"), [("cuda", False), ("auto", True)])
def test_what_is_there_or_asked_for_is_kept(
    asked: str,
    is_installed: bool,
    set_up: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(set_up, monkeypatch, asked=asked, is_installed=is_installed) == [WHOLE]
    assert capsys.readouterr().out == "installing .[test]: some minutes\n"


def test_another_word_is_refused(set_up: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="TORCH: expected auto, cpu or cuda"):
        run(set_up, monkeypatch, asked="gpu")
