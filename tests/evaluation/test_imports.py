from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tide


def test_evaluation_imports_no_slow_package() -> None:
    """Metrics are read in notebooks and scripts, for which torch takes 8 seconds and more."""
    folder = Path(tide.__file__).parents[1]
    files = [
        path.relative_to(folder).with_suffix("")
        for package in ("evaluation", "detoxifier", "cli")
        for path in (folder / "tide" / package).rglob("*.py")
    ]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        "slow = 'torch', 'transformers', 'sklearn', 'scipy', 'matplotlib', 'pandas'\n"
        "print(*[name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
