from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tide

SLOW = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "pandas")


def modules(package: str) -> list[str]:
    folder = Path(tide.__file__).parent
    files = (folder / package).rglob("*.py")
    names = [".".join(("tide", *file.relative_to(folder).with_suffix("").parts)) for file in files]
    return sorted(name.removesuffix(".__init__") for name in names)


def test_evaluation_imports_no_slow_package() -> None:
    """Metrics are read in notebooks and scripts, for which torch takes 8 seconds and more."""
    names = modules("evaluation") + modules("detoxifier") + modules("cli")
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        f"print(*[name for name in {SLOW} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
