"""A package of somebody else's: an engine, a scorer, a strategy and a baseline, as a wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_INFO = "elsewhere-1.0.dist-info"
_FILES = {
    f"{_INFO}/METADATA": "Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n",
    f"{_INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{_INFO}/entry_points.txt": (
        "[tide.engines]\nelsewhere-engine = elsewhere:Scribbler\n"
        "[tide.scorers]\nelsewhere-scorer = elsewhere:LengthScorer\n"
        "[tide.strategies]\nelsewhere-jumps = elsewhere:Jumps\n"
        "[tide.baselines]\nelsewhere-bias = elsewhere:Bias\n"
    ),
}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that pip installed the package into."""
    folder = tmp_path_factory.mktemp("third-party")
    wheel = folder / "elsewhere-1.0-py3-none-any.whl"
    files = {"elsewhere.py": (_HERE / "elsewhere.py").read_text(encoding="utf-8"), **_FILES}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{_INFO}/RECORD", "".join(f"{name},,\n" for name in files))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"
